"""Tensor parallelism: which part of a model each rank has, and the ranks' collectives."""
