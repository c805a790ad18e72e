"""Operators' routes, access control, and the reload of keys and certificates."""
