"""Pooling models: embeddings, classification and scores from hidden states."""
