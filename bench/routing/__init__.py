"""Compares routing policies: the proxy's planner over nodes simulated in virtual time."""
