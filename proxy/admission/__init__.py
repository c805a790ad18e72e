"""Who is let in now, who waits in line, and who is told to come back later."""
