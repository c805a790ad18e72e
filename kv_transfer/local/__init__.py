"""A connector within one process, with faults on demand: for tests and replays."""
