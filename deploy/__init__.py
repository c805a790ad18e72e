"""Code to running processes: the command line, the launcher, scripts and the demo model."""
