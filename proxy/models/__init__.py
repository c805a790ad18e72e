"""Which models there are behind this proxy, and what it needs to speak for each of them."""
