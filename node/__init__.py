"""One node's two processes: the HTTP door, and the engine with its transfer thread."""
