"""gRPC as vLLM offers it, for routers of other projects: the same answers in other messages."""
