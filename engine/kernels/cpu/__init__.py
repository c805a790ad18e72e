"""Kernels in C++ for the CPU: compiled where there is a compiler, and otherwise not needed."""
