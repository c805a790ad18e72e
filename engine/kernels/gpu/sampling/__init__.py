"""From logits to tokens on a GPU, with no vocabulary sorted and nothing brought to the host."""
