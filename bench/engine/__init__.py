"""One engine alone, beside what this machine could do at most, and beside transformers."""
