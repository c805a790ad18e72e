"""Loads checkpoints: weights are read, fused, quantized, or generated (dummy weights)."""
