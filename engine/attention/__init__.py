"""The memory of all KV blocks, and attention over it."""
