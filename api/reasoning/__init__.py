"""What a model thinks aloud before it answers, and how it is told from the answer. Pure."""
