"""Runners: one forward pass over a batch, on the host, or on a device with CUDA graphs."""
