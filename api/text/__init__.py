"""A checkpoint's text: from letters to tokens and back, and where an answer stops."""
