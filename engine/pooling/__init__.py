"""From hidden states to vectors: what a model pools, and how."""
