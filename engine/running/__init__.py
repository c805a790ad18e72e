"""One forward pass over a batch: plainly, or on a device from numbers that are there."""
