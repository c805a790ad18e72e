"""One attempt at a request: its legs, and which of their events go on to the client."""
