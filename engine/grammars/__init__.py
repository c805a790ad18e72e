"""What an answer must look like: from a client's grammar to masks over the vocabulary."""
