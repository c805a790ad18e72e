"""The OpenAPI document of the proxy, and its page for people."""
