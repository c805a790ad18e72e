"""The endpoints for text and token ids, independent of the HTTP server that reads calls."""

import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from secrets import token_hex
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from api.answering import Answer
from api.bodies import ChatBody, Priority, TextBody, Timeout, read_chat, read_completion
from api.chat import ChatFormat
from api.completions import CompletionFormat
from api.defaults import OPENAI
from api.encoding import run_off_loop
from api.envelopes import AnswerWriter, ChoiceFormat
from api.errors import ApiError, BadRequest, UnsupportedMediaType
from api.gate import ADMIT_ALL, AdmissionControl
from api.generator import Generator
from api.logprobs import LogprobFormatter
from api.messages import to_chat as messages
from api.messages.bodies import read_count, read_messages
from api.messages.shapes import OriginalTokens, TokenCount
from api.messages.writer import MessageWriter
from api.prompts import needs_text
from api.request_parser import RequestParser
from api.responses.bodies import read_responses
from api.responses.shapes import InputTokens
from api.responses.to_chat import FIELD_NAMES, chat_of
from api.responses.writer import ResponseWriter
from api.served import LegReader, Models, read_whole_request
from api.sse import AnyWriter, event_stream
from api.text_requests import TextRequest
from api.token_answers import TokenWriter
from api.token_bodies import read_tokens
from api.tools.deltas import ToolCallStream

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
REQUEST_ID = "X-Request-Id"
IN_HEADERS = {
    "priority": ("X-Vllm-Priority", Priority),
    "timeout": ("X-Request-Timeout", Timeout),
    "session_id": ("X-Session-Id", str),
}
UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies such as nginx from buffering a stream."""
ENCODING_COST = 16  # tokenizing a body costs this many times the work of reading it again
SANE_ID = re.compile(r"[!#-;=?-\[\]-~]{1,256}")
TextKind = TypeVar("TextKind", bound=TextBody)


class HasRequestId(Protocol):
    """A body that may carry the client's own id for its request."""

    @property
    def request_id(self) -> str | None:
        """The client's own id; None if the body has none."""


class Headers(Protocol):
    """The headers of a request: names in any case, the first of several values."""

    def get(self, name: str, /) -> str | None:
        """The header's value; None if it is absent."""


@dataclass(slots=True)
class HttpCall:
    """One HTTP call of an endpoint. `outer_id` is set once its body was parsed."""

    headers: Headers
    data: bytes = b""
    outer_id: str | None = None

    def assign_id(self, body: HasRequestId) -> str:
        """Set `outer_id`: the client's own id, if it gave a well-formed one, or a new one."""
        given = (self.headers.get(REQUEST_ID), body.request_id)
        sane = (one for one in given if one and SANE_ID.fullmatch(one))
        self.outer_id = next(sane, None) or token_hex(16)
        return self.outer_id


@dataclass(frozen=True, slots=True)
class TextEndpoints:
    """Text, chat and token-id endpoints over a Generator; each request waits for admission."""

    generator: Generator
    models: Models
    read_leg: LegReader = read_whole_request
    gate: AdmissionControl = ADMIT_ALL
    clock: Callable[[], float] = time.time

    async def completions(self, call: HttpCall) -> AnswerWriter:
        """Answer POST /v1/completions; raises ApiError."""
        body = _with_headers(read_completion(call.data), call.headers)
        outer_id = call.assign_id(body)
        text, timeout_s = needs_text(body), body.timeout
        served = await self.models.find(body.model, outer_id, text=text, timeout_s=timeout_s)
        request = await RequestParser(served, self.read_leg).parse_completion(body, outer_id)
        return self._writer(request, CompletionFormat(_telling(request)))

    async def chat(self, call: HttpCall) -> AnswerWriter:
        """Answer POST /v1/chat/completions; raises ApiError."""
        body = _with_headers(read_chat(call.data), call.headers)
        outer_id = call.assign_id(body)
        served = await self.models.find(body.model, outer_id, timeout_s=body.timeout)
        request = await RequestParser(served, self.read_leg).parse_chat(
            body, outer_id, len(call.data)
        )
        thinks = request.thinking is not None
        return self._writer(
            request, ChatFormat(_telling(request), _tellers(request), thinks=thinks)
        )

    async def responses(self, call: HttpCall) -> ResponseWriter:
        """OpenAI's Responses API, answered as a chat. Raises ApiError."""
        body = _with_headers(read_responses(call.data), call.headers)
        with _translated_errors(FIELD_NAMES.translate):
            request = await self._parse_as_chat(call, body, chat_of)
        return ResponseWriter(Answer(self.generator, request, self.gate), body, self.clock)

    async def input_tokens(self, call: HttpCall) -> InputTokens:
        """The token count of a response's input, without generating. Raises ApiError."""
        body = _with_headers(read_responses(call.data), call.headers)
        with _translated_errors(FIELD_NAMES.translate):
            return InputTokens(await self._count(call, body, chat_of))

    async def messages(self, call: HttpCall) -> MessageWriter:
        """Anthropic's Messages API, answered as a chat. Raises ApiError."""
        body = _with_headers(read_messages(call.data), call.headers)
        with _translated_errors(messages.error_for_messages):
            request = await self._parse_as_chat(call, body, messages.chat_of)
        return MessageWriter(Answer(self.generator, request, self.gate), body)

    async def count_tokens(self, call: HttpCall) -> TokenCount:
        """The token count of a message's prompt, without generating. Raises ApiError."""
        body = _with_headers(read_count(call.data), call.headers)
        with _translated_errors(messages.error_for_messages):
            count = await self._count(call, body, messages.chat_of)
        return TokenCount(
            count, UNSET if body.context_management is None else OriginalTokens(count)
        )

    async def tokens(self, call: HttpCall) -> TokenWriter:
        """POST /inference/v1/generate for clients: no sampling defaults of the model, and no
        tokenizer unless stop strings or bad words need one. Raises ApiError.
        """
        body = _with_headers(read_tokens(call.data), call.headers)
        outer_id = call.assign_id(body)
        text, timeout_s = needs_text(body), body.timeout
        served = await self.models.find(body.model, outer_id, text=text, timeout_s=timeout_s)
        asker = RequestParser(replaced(served, defaults=OPENAI), self.read_leg)
        request = await asker.parse_completion(body, outer_id)
        return TokenWriter(Answer(self.generator, request, self.gate), int(self.clock()))

    async def _parse_as_chat(
        self, call: HttpCall, body: TextKind, chat_of: Callable[[TextKind], ChatBody]
    ) -> TextRequest:
        """Parse a body of another API by way of the chat that it stands for."""
        outer_id, size = call.assign_id(body), len(call.data)
        served = await self.models.find(body.model, outer_id, timeout_s=body.timeout)
        chat = await run_off_loop(size // ENCODING_COST, partial(chat_of, body))
        return await RequestParser(served, self.read_leg).parse_chat(chat, outer_id, size)

    async def _count(
        self, call: HttpCall, body: TextKind, chat_of: Callable[[TextKind], ChatBody]
    ) -> int:
        """The number of prompt tokens of the chat that a body stands for."""
        size = len(call.data)
        served = await self.models.find(
            body.model, call.assign_id(body), timeout_s=body.timeout
        )
        chat = await run_off_loop(size // ENCODING_COST, partial(chat_of, body))
        return await RequestParser(served, read_whole_request).count_prompt_tokens(chat, size)

    def _writer(self, request: TextRequest, form: ChoiceFormat) -> AnswerWriter:
        return AnswerWriter(Answer(self.generator, request, self.gate), form, int(self.clock()))


Endpoint = Callable[[HttpCall], Awaitable[AnyWriter]]


def check_type(headers: Headers) -> None:
    """Refuse a form that a browser can send; a body without a type is taken for JSON.

    Raises UnsupportedMediaType.
    """
    kind = (headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if kind and kind != JSON and not kind.endswith("+json"):
        raise UnsupportedMediaType(f"the body must be {JSON}, not {kind}")
    if (headers.get("Content-Encoding") or "identity").lower() != "identity":
        raise UnsupportedMediaType("the body must not be compressed")


async def start_stream(writer: AnyWriter) -> AsyncGenerator[bytes]:
    """Wait for the first event, then return the whole stream; the caller has to close it.

    Errors before the first event are raised, so that they can still become an HTTP status.
    """
    events = event_stream(writer)
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    return _all(first, events)


async def _all(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event


@contextmanager
def _translated_errors(words: Callable[[ApiError], ApiError]) -> Iterator[None]:
    """Translate refusals into the field names of another API."""
    try:
        yield
    except ApiError as refusal:
        raise words(refusal) from refusal


def _telling(request: TextRequest) -> LogprobFormatter:
    return LogprobFormatter(
        request.codec.vocabulary, bool(request.body.return_tokens_as_token_ids)
    )


def _tellers(request: TextRequest) -> Sequence[ToolCallStream]:
    """One tool call parser for each choice."""
    calling = request.calling
    return [calling.new_stream() for _ in request.calls] if calling else ()


def _with_headers(body: TextKind, headers: Headers) -> TextKind:
    """Fill fields that the body leaves out from headers; raises BadRequest."""
    said = dict[str, object]()
    for name, (header, kind) in IN_HEADERS.items():
        if getattr(body, name) is None and (given := headers.get(header)) is not None:
            try:
                said[name] = msgspec.convert(given, kind, strict=False)
            except msgspec.ValidationError as error:
                raise BadRequest(f"{header}: {error}", header) from error
    return replace(body, **said) if said else body
