"""What a model is offered to call, and how the calls in its answers are read. Pure."""
