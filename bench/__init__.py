"""Load and measurements: what a split costs, and what bounds it. Never decides a test."""
