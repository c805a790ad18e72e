"""Bugs, as patches; the tests that look for them look for these, too."""
