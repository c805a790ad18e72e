"""How nodes are called over HTTP, and those that were added by hand."""
