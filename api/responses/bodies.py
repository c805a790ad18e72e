"""The JSON body of POST /v1/responses: what a client may send."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.bodies import Effort, Messages, RequestBody, TextBody, Tools, convert, read_object
from api.responses.fields import INSTEAD, RESPONSES
from api.tools.functions import FunctionName
from api.tools.tool_choice import ToolChoiceMode
from engine.request import Limit, Ranks

LOGPROBS = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
]
"""Values of `include`; all but the first ask for things that no answer here has."""
Labels = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may be called; its other keys are ignored."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that takes a text; its other keys are ignored."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: dict[str, Any] | None = None


class ResponsesNamedFunction(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A `tool_choice` that is one function."""

    name: str


class ResponsesNamedCustom(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """A `tool_choice` that is one custom tool."""

    name: str


class ResponsesAllowedTools(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` of some of the tools; `mode` applies to these."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponsesNamedFunction | ResponsesNamedCustom], Meta(min_length=1)]


ToolChoice = (
    ToolChoiceMode | ResponsesNamedFunction | ResponsesNamedCustom | ResponsesAllowedTools
)


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The format that the text must have; `name`, `description` and `strict` change nothing."""

    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings of the text output."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningConfig(msgspec.Struct, frozen=True):
    """The reasoning effort. There are no summaries: the reasoning is sent in full."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesBody(TextBody, frozen=True, kw_only=True):
    """POST /v1/responses: OpenAI's fields, and those of chats here."""

    input: str | Messages
    instructions: str | None = None
    max_output_tokens: Limit | None = None
    max_tool_calls: Limit | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: tuple[Include, ...] | None = None
    top_logprobs: Ranks | None = None
    metadata: Labels | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    store: bool | None = None
    include_reasoning: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of the text's tokens are wanted."""
        return LOGPROBS in (self.include or ())


SHARED = frozenset(TextBody.__struct_fields__)
"""Fields that mean the same here as in a chat."""
assert frozenset(RequestBody.__struct_fields__) <= SHARED


def read_responses(data: bytes) -> ResponsesBody:
    """Decode and check the body; raises BadRequest for any invalid bytes."""
    return convert(read_object(data, RESPONSES, INSTEAD), ResponsesBody)
