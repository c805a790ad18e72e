"""The transfer thread: turns, the sweep beside it, and queues to the engine's thread."""
