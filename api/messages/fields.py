"""Fields of POST /v1/messages that are refused by name, each with an alternative.

A value that changes nothing is accepted, as at the other endpoints. So are fields that only
control how Anthropic's own servers work: caching, regions, billing, diagnoses, and what to
clear of a conversation; nothing is cleared here.
"""

from collections.abc import Mapping

from api.errors import BadRequest
from api.fields import CHAT, NONE

INSTEAD: Mapping[str, str] = {
    "compaction": "nothing is summarized here: ask for a summary in words",
    "container": "nobody runs tools here, only clients theirs: there are no containers",
    "input": "say messages",
    "instructions": "say system",
    "max_completion_tokens": "say max_tokens",
    "mcp_servers": "nobody asks other servers here: give their tools as tools",
    "n": "an answer has one choice: ask again, or ask /v1/chat/completions",
    "parallel_tool_calls": "say tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "say output_config.effort",
    "response_format": "say output_config.format",
    "stop": "say stop_sequences",
}
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "mcp_servers": (None, []),
    "n": (None, 1),
    "parallel_tool_calls": (None, True),
    "stop": (None, []),
}
ONLY_OF_CHATS = ("service_tier", "store")
MESSAGES: Mapping[str, tuple[object, ...]] = {
    **{name: NEUTRAL.get(name, NONE) for name in INSTEAD},
    **{name: neutral for name, neutral in CHAT.items() if name not in ONLY_OF_CHATS},
    "documents": (None, []),
    "prompt_logprobs": NONE,
    "return_token_ids": (None, False),
}


class NoThreads(BadRequest):
    """The client asked to keep a conversation, or to continue one. Anthropic's clients
    recognise the code, and then send the whole conversation.
    """

    code = "thread_unsupported_request"


def refuse_threads(given: Mapping[str, object]) -> None:
    """Raises NoThreads if the body asks for a stored conversation."""
    if given.get("thread") is not None:
        why = "thread: no conversation is kept here: send all of it as messages"
        raise NoThreads(why, "thread")
