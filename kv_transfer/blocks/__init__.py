"""How blocks of two sides lie to each other: cuts, runs, and what they look like. Pure."""
