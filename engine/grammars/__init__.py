"""Structured output: from a client's grammar to bitmasks over the vocabulary."""
