"""Our kernels and steps on one GPU, beside their floors and beside torch's own."""
