"""POST /v1/responses: OpenAI's other form of a chat, over the same questions and answers."""
