"""The JSON bodies of text requests: parsed, and refused by the name of a wrong field."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from api import wire
from api.body_limits import (
    MOST_ALLOWED,
    MOST_BIASES,
    MOST_STOP_IDS,
    MOST_STRINGS,
    refuse_crowded,
)
from api.errors import BadRequest
from api.fields import CHAT, COMPLETIONS, UnsupportedField, refuse_unsupported
from api.grammars import Choices, Schema
from api.out_of_range import number_out_of_range
from api.tools.tool_choice import ToolChoice, ToolSettings, read_tools
from api.wire import TOO_DEEP, UNREADABLE, WireError
from engine.request import (
    LARGEST_TOKEN,
    Count,
    Limit,
    Penalty,
    Probability,
    Ranks,
    Repetition,
    Temperature,
    TokenId,
)

MOST_CHOICES = 128
MOST_MESSAGES, MOST_TOOLS = 20_000, 4_096  # more would hold up the event loop
LONGEST_NAME = 4_096  # of a session or a cache's salt
LONGEST_TIMEOUT_S = 7 * 24 * 3600
HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u)")
LAST = 12  # bytes of a body in which half a pair makes msgspec say that it was truncated
NOTHING_ELSE: Mapping[str, str] = {}
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Priority = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Messages = Annotated[list[dict[str, Any]], Meta(max_length=MOST_MESSAGES)]
Tools = Annotated[list[dict[str, Any]], Meta(max_length=MOST_TOOLS)]
Documents = Annotated[list[dict[str, Any]], Meta(max_length=MOST_MESSAGES)]
Side = Literal["left", "right"]
Timeout = Annotated[float, Meta(gt=0, le=LONGEST_TIMEOUT_S)]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Strings = Annotated[list[str], Meta(max_length=MOST_STRINGS)]


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether a stream reports usage: at its end, and in every chunk."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class PdserveOptions(msgspec.Struct, frozen=True):
    """pdserve's own options: `timings` asks for the durations of the request's stages."""

    timings: bool | None = False


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that text and token-id requests share; null is the same as absent."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: Priority | None = None
    timeout: Timeout | None = None
    cache_salt: Name | None = None
    request_id: str | None = None
    session_id: Name | None = None
    user: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    pdserve: PdserveOptions | None = None


class TextBody(RequestBody, frozen=True, kw_only=True):
    """What completions and chat share."""

    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Limit | None = None
    min_tokens: Count | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=LARGEST_TOKEN)] | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=MOST_BIASES)] | None = None
    allowed_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MOST_ALLOWED)] | None = (
        None
    )
    bad_words: Strings | None = None
    prompt_logprobs: Ranks | None = None
    return_tokens_as_token_ids: bool | None = False
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structural_tag: Schema | None = None
    seed: int | None = None
    stop: str | Strings | None = None
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MOST_STOP_IDS)] | None = None
    ignore_eos: bool | None = False
    include_stop_str_in_output: bool | None = False
    skip_special_tokens: bool | None = True
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Side | None = None
    return_token_ids: bool | None = False

    @property
    def session(self) -> str:
        """The session for routing: `session_id`, or else `user` if that is a string."""
        user = self.user[:LONGEST_NAME] if isinstance(self.user, str) else ""
        return self.session_id or user

    @property
    def num_logprobs(self) -> int | None:
        """How many of the likeliest tokens to report at each token; None: no logprobs."""
        raise NotImplementedError

    @property
    def echoes_prompt(self) -> bool:
        """Whether the answer begins with the prompt."""
        return False

    @property
    def continues_text(self) -> bool:
        """Whether the answer continues the prompt's text, and is not a new message."""
        return True

    @property
    def clamps_max_tokens(self) -> bool:
        """Whether a `max_tokens` beyond the context is lowered, not refused."""
        return False

    @property
    def only_echo(self) -> bool:
        """Whether the client wants its prompt back, and nothing else."""
        return self.echoes_prompt and self.max_tokens == 0 and not self.max_completion_tokens


class CompletionBody(TextBody, frozen=True, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    logprobs: Ranks | None = None
    echo: bool | None = False

    @property
    def num_logprobs(self) -> int | None:
        """The field of that name in OpenAI's completions."""
        return self.logprobs

    @property
    def echoes_prompt(self) -> bool:
        """If `echo` is set."""
        return bool(self.echo)


class RequestMessage(msgspec.Struct, frozen=True):
    """The part of a chat message that we read; the template reads the rest."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatBody(TextBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions. `tools` are the template's as well, just as they come."""

    messages: Messages
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    include_reasoning: bool | None = True
    reasoning_effort: Effort | None = None
    logprobs: bool | None = False
    top_logprobs: Ranks | None = None

    @property
    def continues_text(self) -> bool:
        """If `continue_final_message` is set."""
        return bool(self.continue_final_message)

    @property
    def num_logprobs(self) -> int | None:
        """`top_logprobs`, where `logprobs` is true."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def tool_use(self) -> ToolSettings | None:
        """The tools, and how they may be called; raises WireError."""
        return read_tools(self.tools, self.tool_choice, self.parallel_tool_calls)


Kind = TypeVar("Kind")


def read_completion(data: bytes) -> CompletionBody:
    """Decode and check the body; raises BadRequest for any invalid bytes."""
    return convert(read_object(data, COMPLETIONS), CompletionBody)


def read_chat(data: bytes) -> ChatBody:
    """Decode and check the body; raises BadRequest for any invalid bytes."""
    return convert(read_object(data, CHAT), ChatBody)


def convert(given: object, kind: type[Kind], within: str = "") -> Kind:
    """Check types and limits; `within` is the path of `given`. Raises BadRequest."""
    try:
        return wire.convert(given, kind, within)
    except WireError as error:
        raise BadRequest(str(error), error.param) from error


def read_object(
    data: bytes,
    unsupported: Mapping[str, tuple[object, ...]],
    instead: Mapping[str, str] = NOTHING_ELSE,
) -> Mapping[str, object]:
    """The fields of a JSON body. Raises BadRequest for a field that is not supported; `instead`
    has the error text of some of them.
    """
    try:
        refuse_crowded(data)
        given = msgspec.json.decode(data)
    except WireError as error:
        raise BadRequest(str(error)) from error
    except RecursionError as error:
        raise BadRequest(f"The body is nested too deeply: {TOO_DEEP}") from error
    except UNREADABLE as error:
        if found := number_out_of_range(data, str(error)):
            raise BadRequest(found[1], found[0]) from error
        raise BadRequest(_why_unreadable(data, error)) from error
    if not isinstance(given, dict):
        raise BadRequest("The body must be a JSON object")
    try:
        refuse_unsupported(given, unsupported)
    except UnsupportedField as error:
        name = error.param
        why = f"{name}: {instead[name]}" if name in instead else str(error)
        raise BadRequest(why, name) from error
    return given


def _why_unreadable(data: bytes, error: Exception) -> str:
    """What is wrong with a body that is not JSON, where msgspec does not say it well."""
    if not data:
        return "The body is empty: it has to be a JSON object"
    why = str(error)
    if half := HALF_PAIR.search(data[-LAST:]):
        why = f"{half[0].decode()} is half of a surrogate pair"
    elif isinstance(error, UnicodeDecodeError):
        why = _not_utf8(data) or why
    return f"The body is not valid JSON: {why}"


def _not_utf8(data: bytes) -> str | None:
    """The first byte that is not UTF-8, counted from the body's beginning."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 (byte {error.start})"
    return None
