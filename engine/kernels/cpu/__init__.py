"""Kernels in C++ for the CPU; without a compiler plain torch runs instead."""
