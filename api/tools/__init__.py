"""Tool calling: which tools a model may call, and how calls in its answers are parsed. Pure."""
