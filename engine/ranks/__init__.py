"""Tensor parallelism over processes: rank 0 leads, the other ranks follow its messages."""
