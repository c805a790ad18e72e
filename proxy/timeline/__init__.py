"""What happened to a request, and when. It is told in `proxy/observing/`."""
