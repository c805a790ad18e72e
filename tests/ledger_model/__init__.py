"""Nodes, a network that loses what it can, and a clock: what a hand-over has to survive."""
