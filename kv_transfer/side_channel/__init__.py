"""Messages between a sink and a source, over connections of their own."""
