"""Which nodes, and which pairs of nodes, get no work for a while. Pure."""
