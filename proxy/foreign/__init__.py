"""How nodes of vLLM are spoken to, and what was found out of each. Pure."""
