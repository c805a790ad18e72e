"""One attempt at a request: its legs, and what of their words goes on to the client."""
