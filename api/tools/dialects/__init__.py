"""The forms in which models write calls: how each is read, and how it is written."""
