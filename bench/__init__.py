"""Benchmarks: load generators and measurements; no test passes or fails by them."""
