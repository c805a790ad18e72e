"""What is faster than plain torch: C++ for CPUs, Triton for GPUs; each has a twin in torch."""
