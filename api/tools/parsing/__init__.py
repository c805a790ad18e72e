"""Parts of all tool call parsers, which read an answer character by character."""
