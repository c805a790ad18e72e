"""What happened to a request, and when; `proxy/observing/` renders it."""
