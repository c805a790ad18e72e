"""The scheduler: it chooses each batch and gives sequences their KV blocks. No tensors."""
