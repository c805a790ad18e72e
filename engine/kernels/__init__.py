"""Kernels in C++ for CPUs and Triton for GPUs; each has a twin in plain torch."""
