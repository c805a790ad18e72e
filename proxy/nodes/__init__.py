"""How nodes are called over HTTP, and the nodes that were added by hand."""
