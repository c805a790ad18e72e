"""The measured rows: each module here has `rows(shape)`, and is discovered automatically."""
