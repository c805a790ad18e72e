"""Reasoning parsers: they split what a model thinks aloud from the content it answers. Pure."""
