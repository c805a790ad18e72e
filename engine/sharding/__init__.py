"""Tensor parallelism: what part of a model each rank has, and their collectives."""
