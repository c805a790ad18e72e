"""KV cache tiers in host memory and on disk: evicted blocks are kept there and copied back."""
