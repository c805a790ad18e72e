"""From a checkpoint folder to a decoder that computes hidden states and logits."""
