"""Which node gets the next request, and which nodes fit each other."""
