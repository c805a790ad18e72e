"""Loads checkpoints: weights are read, fused, quantized, or made up."""
