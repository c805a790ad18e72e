"""Whether the bytes that came are those that were sent."""
