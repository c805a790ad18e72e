"""From logits to tokens on a GPU, without sorting the vocabulary or copying to the host."""
