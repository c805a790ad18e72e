"""Endpoints of text and token ids, whoever reads the HTTP: from a call to what answers it."""

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
from api.asking import Asker
from api.bodies import ChatBody, Priority, TextBody, Timeout, read_chat, read_completion
from api.calls import Asked
from api.chat import ChatForm
from api.completions import CompletionForm
from api.defaults import OPENAI
from api.encoding import aside
from api.envelopes import Form, Writer
from api.errors import ApiError, BadRequest, WrongType
from api.gate import OPEN, Gate
from api.generator import Generator
from api.logprobs import Telling
from api.messages import asking as messages
from api.messages.bodies import read_count, read_messages
from api.messages.shapes import OriginalTokens, TokenCount
from api.messages.writer import MessageWriter
from api.prompts import needs_text
from api.responses.asking import OWN, chat_of
from api.responses.bodies import read_responses
from api.responses.shapes import InputTokens
from api.responses.writer import ResponseWriter
from api.served import Models, ReadLeg, no_legs
from api.sse import AnyWriter, frames
from api.token_answers import TokenWriter
from api.token_bodies import read_tokens
from api.tools.telling import Teller

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
REQUEST_ID = "X-Request-Id"
IN_HEADERS = {
    "priority": ("X-Vllm-Priority", Priority),
    "timeout": ("X-Request-Timeout", Timeout),
    "session_id": ("X-Session-Id", str),
}
AS_IT_COMES = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""What keeps nginx, and others that read the second, from saving up a stream."""
ENCODING = 16  # to make tokens of a body is so many times the work of reading it again
SANE_ID = re.compile(r"[!#-;=?-\[\]-~]{1,256}")
TextKind = TypeVar("TextKind", bound=TextBody)


class Named(Protocol):
    """A body in which a client may name its request."""

    @property
    def request_id(self) -> str | None:
        """None where it does not."""


class Headers(Protocol):
    """Those of a request, by their names in any case; the first of several."""

    def get(self, name: str, /) -> str | None:
        """None where there is none."""


@dataclass(slots=True)
class Call:
    """One call of an endpoint. `outer_id` is there once its body was understood."""

    headers: Headers
    data: bytes = b""
    outer_id: str | None = None

    def name(self, body: Named) -> str:
        """The client's own name for it where that is a sane one, or else a new one."""
        given = (self.headers.get(REQUEST_ID), body.request_id)
        sane = (one for one in given if one and SANE_ID.fullmatch(one))
        self.outer_id = next(sane, None) or token_hex(16)
        return self.outer_id


@dataclass(frozen=True, slots=True)
class TextEndpoints:
    """Completions of texts, chats and token ids over a Generator; each waits at the gate."""

    generator: Generator
    models: Models
    read_leg: ReadLeg = no_legs
    gate: Gate = OPEN
    clock: Callable[[], float] = time.time

    async def completions(self, call: Call) -> Writer:
        """Raises ApiError."""
        body = _with_headers(read_completion(call.data), call.headers)
        outer_id = call.name(body)
        text, timeout_s = needs_text(body), body.timeout
        served = await self.models.find(body.model, outer_id, text=text, timeout_s=timeout_s)
        asked = await Asker(served, self.read_leg).completion(body, outer_id)
        return self._writer(asked, CompletionForm(_telling(asked)))

    async def chat(self, call: Call) -> Writer:
        """Raises ApiError."""
        body = _with_headers(read_chat(call.data), call.headers)
        outer_id = call.name(body)
        served = await self.models.find(body.model, outer_id, timeout_s=body.timeout)
        asked = await Asker(served, self.read_leg).chat(body, outer_id, len(call.data))
        thinks = asked.thinking is not None
        return self._writer(asked, ChatForm(_telling(asked), _tellers(asked), thinks=thinks))

    async def responses(self, call: Call) -> ResponseWriter:
        """A chat in other words: none of them is a leg's. Raises ApiError."""
        body = _with_headers(read_responses(call.data), call.headers)
        with _told(OWN.tell):
            asked = await self._asked(call, body, chat_of)
        return ResponseWriter(Answer(self.generator, asked, self.gate), body, self.clock)

    async def input_tokens(self, call: Call) -> InputTokens:
        """Of a response that is not made. Raises ApiError."""
        body = _with_headers(read_responses(call.data), call.headers)
        with _told(OWN.tell):
            return InputTokens(await self._count(call, body, chat_of))

    async def messages(self, call: Call) -> MessageWriter:
        """The same in yet other words. Raises ApiError."""
        body = _with_headers(read_messages(call.data), call.headers)
        with _told(messages.in_own_words):
            asked = await self._asked(call, body, messages.chat_of)
        return MessageWriter(Answer(self.generator, asked, self.gate), body)

    async def count_tokens(self, call: Call) -> TokenCount:
        """How long the prompt of a message would be. Raises ApiError."""
        body = _with_headers(read_count(call.data), call.headers)
        with _told(messages.in_own_words):
            count = await self._count(call, body, messages.chat_of)
        return TokenCount(
            count, UNSET if body.context_management is None else OriginalTokens(count)
        )

    async def tokens(self, call: Call) -> TokenWriter:
        """As a model's node would: without its defaults, and its tokenizer only where words are
        looked for. Raises ApiError.
        """
        body = _with_headers(read_tokens(call.data), call.headers)
        outer_id = call.name(body)
        text, timeout_s = needs_text(body), body.timeout
        served = await self.models.find(body.model, outer_id, text=text, timeout_s=timeout_s)
        asker = Asker(replaced(served, defaults=OPENAI), self.read_leg)
        asked = await asker.completion(body, outer_id)
        return TokenWriter(Answer(self.generator, asked, self.gate), int(self.clock()))

    async def _asked(
        self, call: Call, body: TextKind, chat_of: Callable[[TextKind], ChatBody]
    ) -> Asked:
        """What the chat asks for that this body is."""
        outer_id, size = call.name(body), len(call.data)
        served = await self.models.find(body.model, outer_id, timeout_s=body.timeout)
        chat = await aside(size // ENCODING, partial(chat_of, body))
        return await Asker(served, no_legs).chat(chat, outer_id, size)

    async def _count(
        self, call: Call, body: TextKind, chat_of: Callable[[TextKind], ChatBody]
    ) -> int:
        """The tokens of that chat's prompt."""
        size = len(call.data)
        served = await self.models.find(body.model, call.name(body), timeout_s=body.timeout)
        chat = await aside(size // ENCODING, partial(chat_of, body))
        return await Asker(served, no_legs).count(chat, size)

    def _writer(self, asked: Asked, form: Form) -> Writer:
        return Writer(Answer(self.generator, asked, self.gate), form, int(self.clock()))


Endpoint = Callable[[Call], Awaitable[AnyWriter]]


def check_type(headers: Headers) -> None:
    """A body without a type is taken for JSON; a form that a browser can send is not.

    Raises WrongType.
    """
    kind = (headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if kind and kind != JSON and not kind.endswith("+json"):
        raise WrongType(f"the body must be {JSON}, not {kind}")
    if (headers.get("Content-Encoding") or "identity").lower() != "identity":
        raise WrongType("the body must not be compressed")


async def begun(writer: AnyWriter) -> AsyncGenerator[bytes]:
    """A stream of events that has begun: there is something to say, and a status for it.

    Raises what fails before. Whoever gets it closes it.
    """
    events = frames(writer)
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
def _told(words: Callable[[ApiError], ApiError]) -> Iterator[None]:
    """Refusals within are told in these words."""
    try:
        yield
    except ApiError as refusal:
        raise words(refusal) from refusal


def _telling(asked: Asked) -> Telling:
    return Telling(asked.codec.vocabulary, bool(asked.body.return_tokens_as_token_ids))


def _tellers(asked: Asked) -> Sequence[Teller]:
    """One for each choice: they may be anywhere in a call."""
    calling = asked.calling
    return [calling.teller() for _ in asked.calls] if calling else ()


def _with_headers(body: TextKind, headers: Headers) -> TextKind:
    """What a body leaves open may be said in a header; raises BadRequest."""
    said = dict[str, object]()
    for name, (header, kind) in IN_HEADERS.items():
        if getattr(body, name) is None and (given := headers.get(header)) is not None:
            try:
                said[name] = msgspec.convert(given, kind, strict=False)
            except msgspec.ValidationError as error:
                raise BadRequest(f"{header}: {error}", header) from error
    return replace(body, **said) if said else body
