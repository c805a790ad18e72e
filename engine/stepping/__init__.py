"""One engine step: run the scheduled batch and record its tokens, or launch it ahead."""
