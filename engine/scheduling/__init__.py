"""Who computes what in the next batch, and whose the blocks are. No tensors."""
