"""One engine alone, compared with this machine's ceilings and with transformers."""
