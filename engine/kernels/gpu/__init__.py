"""Kernels in Triton for GPUs; each has a twin in plain torch, and a floor that it states."""
