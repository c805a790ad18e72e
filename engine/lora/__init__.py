"""LoRA adapters: small additions to a model's weights, many at a time over one model."""
