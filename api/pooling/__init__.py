"""Embeddings, scores and classes of texts: the endpoints that answer with numbers."""
