"""The answers of POST /v1/messages: the message, and the blocks of its content."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from api.answering import Answer
from api.usage import Params, Timings, usage_of

StopReason = Literal[
    "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
]
EMPTY_INPUT = Raw(b"{}")


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A block of text."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """A block of the model's reasoning."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A tool call for the client to run. `id` also goes with the call's result."""

    id: str
    name: str
    input: Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(msgspec.Struct, frozen=True):
    """How many tokens of the answer were reasoning."""

    thinking_tokens: int


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. The prompt is the sum of the first three; tokens written to caches are not
    counted.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails | UnsetType = UNSET
    service_tier: Literal["standard"] = "standard"


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The answer."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: Sequence[Block] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage
    kv_transfer_params: Params | UnsetType = UNSET
    pdserve: Timings | UnsetType = UNSET


class OriginalTokens(msgspec.Struct, frozen=True):
    """The token count before anything was cleared of the conversation; nothing ever is."""

    original_input_tokens: int


class TokenCount(msgspec.Struct, frozen=True):
    """How many tokens the prompt would have."""

    input_tokens: int
    context_management: OriginalTokens | UnsetType = UNSET


def new_message(answer: Answer) -> MessageAnswer:
    """The message at the start of its stream: no content, and no output tokens."""
    return MessageAnswer(
        id=f"msg_{answer.request.outer_id}",
        model=answer.request.model,
        usage=msgspec.structs.replace(
            message_usage(answer), output_tokens=0, output_tokens_details=UNSET
        ),
    )


def message_usage(answer: Answer) -> MessageUsage:
    """The tokens so far, in Anthropic's fields."""
    usage = usage_of(answer)
    cached = usage.prompt_tokens_details.cached_tokens
    details = usage.completion_tokens_details
    thought = UNSET if details is UNSET else OutputDetails(details.reasoning_tokens)
    return MessageUsage(
        input_tokens=max(usage.prompt_tokens - cached, 0),
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=thought,
    )
