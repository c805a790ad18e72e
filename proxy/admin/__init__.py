"""What operators see and may do, and who is let in."""
