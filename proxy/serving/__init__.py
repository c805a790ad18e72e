"""The HTTP server under the app: a fast path for text endpoints, fewer writes, CORS."""
