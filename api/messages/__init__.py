"""POST /v1/messages: Anthropic's form of a chat, over the same questions and answers."""
