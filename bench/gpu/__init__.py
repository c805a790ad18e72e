"""Our kernels and steps on one GPU, compared with their floors and with torch's own."""
