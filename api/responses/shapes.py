"""The answers of POST /v1/responses: the response, and the items in its output."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from api.answering import Answer
from api.responses.bodies import (
    ReasoningConfig,
    ResponsesBody,
    TextConfig,
    TextFormat,
    ToolChoice,
)
from api.usage import Params, Timings, usage_of

Status = Literal["in_progress", "completed", "incomplete"]
ErrorCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
USUAL_TIER = "default"


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """The text of a message. `logprobs`: each a ChatTokenLogprob, if they were asked for."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[Raw] = ()


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """A text of the model's reasoning."""

    text: str


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """The model's reasoning; without a summary or encrypted content."""

    id: str
    status: Status
    content: Sequence[ReasoningText]
    summary: tuple[()] = ()
    encrypted_content: None = None


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the model."""

    id: str
    status: Status
    content: Sequence[OutputText]
    role: Literal["assistant"] = "assistant"


class CallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A function call for the client to run. `call_id` also goes with the call's result."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(msgspec.Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool, which takes a text."""

    id: str
    status: Status
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


Part = OutputText | ReasoningText
Item = ReasoningItem | MessageItem | CallItem | CustomCallItem


class InputDetails(msgspec.Struct, frozen=True):
    """How many of the prompt's tokens were in a prefix cache; writes are not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """How many tokens of the answer were reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """The token usage of one response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    """Why the response ended early."""

    code: ErrorCode
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why the answer was cut short."""

    reason: Literal["max_output_tokens"]


class ReasoningUsed(msgspec.Struct, frozen=True):
    """The reasoning effort that the request asked for."""

    effort: str | None
    summary: None = None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, and the settings that it was made with."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    completed_at: int | None = None
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: Mapping[str, str]
    model: str
    output: Sequence[Item] = ()
    parallel_tool_calls: bool
    previous_response_id: None = None
    prompt_cache_key: str | None
    reasoning: ReasoningUsed
    safety_identifier: str | None
    service_tier: str = USUAL_TIER
    store: bool = False
    temperature: float
    text: TextConfig
    tool_choice: ToolChoice
    tools: Sequence[Mapping[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None
    kv_transfer_params: Params | UnsetType = UNSET
    pdserve: Timings | UnsetType = UNSET


def new_response(answer: Answer, body: ResponsesBody, created: int) -> Response:
    """The response at the start of its stream, without output."""
    sampling = answer.choices[0].call.request.sampling
    text = body.text or TextConfig()
    return Response(
        id=f"resp_{answer.request.outer_id}",
        created_at=created,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=answer.request.model,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=ReasoningUsed((body.reasoning or ReasoningConfig()).effort),
        safety_identifier=body.safety_identifier,
        temperature=sampling.temperature,
        text=TextConfig(text.format or TextFormat("text"), text.verbosity),
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or (),
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        truncation=body.truncation or "disabled",
        user=body.user if isinstance(body.user, str) else None,
    )


def response_usage(answer: Answer) -> ResponseUsage:
    """The tokens up to now, in the fields of responses."""
    usage = usage_of(answer)
    details = usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(
            0 if details is UNSET else details.reasoning_tokens
        ),
        total_tokens=usage.total_tokens,
    )


class InputTokens(msgspec.Struct, frozen=True):
    """How many tokens the prompt of a response would have."""

    input_tokens: int
    object: str = "response.input_tokens"
