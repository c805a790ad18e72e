"""Publishes what a node's prefix cache has, as vLLM's KV cache events; other routers use it."""
