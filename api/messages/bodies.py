"""The JSON bodies of POST /v1/messages and of its count_tokens: what a client may send."""

from typing import Any, Literal, TypeVar

import msgspec

from api.bodies import Messages, RequestBody, Strings, TextBody, Tools, convert, read_object
from api.messages.fields import INSTEAD, MESSAGES, refuse_threads
from api.tools.functions import FunctionName
from engine.request import Count, Limit

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class CustomTool(msgspec.Struct, frozen=True):
    """A tool that clients run; its other keys are ignored."""

    name: FunctionName
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether a tool is to be called; `name` is the tool that must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, frozen=True):
    """Whether the model is to think. `budget_tokens` have no effect; `omitted`: the reasoning
    is sent only in the block's signature.
    """

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Limit | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """The format that the text must have."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """Settings of the output: its format and the effort."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class Metadata(msgspec.Struct, frozen=True):
    """Metadata; its user id is the session if there is no `session_id`."""

    user_id: str | None = None


class CountBody(TextBody, frozen=True, kw_only=True):
    """POST /v1/messages/count_tokens: fields that make the prompt; others have no effect."""

    messages: Messages
    system: str | list[dict[str, Any]] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    stop_sequences: Strings | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    context_management: dict[str, Any] | None = None
    include_reasoning: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """POST /v1/messages: Anthropic's fields, and those of chats here."""

    max_tokens: Count

    @property
    def hides_thinking(self) -> bool:
        """Whether reasoning is sent only in signatures."""
        return self.thinking is not None and self.thinking.display == "omitted"


Kind = TypeVar("Kind", bound=CountBody)
SHARED = frozenset(TextBody.__struct_fields__)
"""Fields that mean the same here as in a chat."""
assert frozenset(RequestBody.__struct_fields__) <= SHARED


def read_messages(data: bytes) -> MessagesBody:
    """Decode and check the body; raises BadRequest for any invalid bytes."""
    return _read(data, MessagesBody)


def read_count(data: bytes) -> CountBody:
    """Decode and check the body; raises BadRequest for any invalid bytes."""
    return _read(data, CountBody)


def _read(data: bytes, kind: type[Kind]) -> Kind:
    given = read_object(data, MESSAGES, INSTEAD)
    refuse_threads(given)
    return convert(given, kind)
