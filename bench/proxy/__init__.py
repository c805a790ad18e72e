"""What the proxy costs: per request, per streamed token, per registered node."""
