"""Triton kernels over KV memory on a device: what would cost a copy to the host otherwise."""
