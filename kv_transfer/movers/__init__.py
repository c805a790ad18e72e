"""What moves bytes: NIXL, TCP, and what they have in common."""
