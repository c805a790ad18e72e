"""The server under the app: what of it costs too much as it comes, and which pages may ask."""
