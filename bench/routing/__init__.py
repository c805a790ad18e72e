"""What policies bring: the proxy's planner over nodes simulated in virtual time."""
