"""Which node gets the next request, and which nodes are compatible."""
