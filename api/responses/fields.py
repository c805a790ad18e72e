"""Fields of POST /v1/responses that are refused by name, each with an alternative.

A value that changes nothing is accepted, as at the other endpoints. Pure.
"""

from collections.abc import Mapping

from api.fields import CHAT, NONE

INSTEAD: Mapping[str, str] = {
    "background": "nothing is kept here that could be asked for later: stream the answer",
    "conversation": "no conversation is kept here: send all of it as input",
    "max_completion_tokens": "say max_output_tokens",
    "max_tokens": "say max_output_tokens",
    "messages": "say input",
    "n": "an answer has one choice: ask again, or ask /v1/chat/completions",
    "previous_response_id": "no response is kept here: send the whole conversation as input",
    "prompt": "no prompts are kept here: send instructions and input",
    "reasoning_effort": "say reasoning.effort",
    "response_format": "say text.format",
}
NEUTRAL: Mapping[str, tuple[object, ...]] = {"background": (None, False), "n": (None, 1)}
ONLY_OF_CHATS = ("function_call", "functions")
RESPONSES: Mapping[str, tuple[object, ...]] = {
    **{name: NEUTRAL.get(name, NONE) for name in INSTEAD},
    **{name: neutral for name, neutral in CHAT.items() if name not in ONLY_OF_CHATS},
    "context_management": (None, []),
    "documents": (None, []),
    "prompt_logprobs": NONE,
    "return_token_ids": (None, False),
}
