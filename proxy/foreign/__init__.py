"""How to talk to vLLM nodes, and what was found out about each. Pure."""
