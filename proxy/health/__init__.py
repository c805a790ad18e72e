"""Which nodes, and which pairs of them, work is kept away from for a while; pure."""
