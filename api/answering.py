"""All choices of one text request, from token events to pieces of text."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from api.asking import Asked, Call
from api.detokenizing import Detokenizer
from api.generator import (
    Event,
    Generator,
    PromptEvent,
    StageEvent,
    StreamFailed,
    TicketEvent,
    TokenEvent,
)
from api.stopping import StopWatch
from api.streams import Streams
from engine.request import FinishReason
from kv_transfer.ticket import KvTicket

USUAL = (None, FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one choice's answer; `finish` is set with its last.

    `num_tokens` is how many the choice has up to here: it may be further already.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    num_tokens: int
    finish: FinishReason | None = None
    stop_reason: int | str | None = None


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one choice as one."""
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    text, last = "".join(piece.text for piece in pieces), pieces[-1]
    return Piece(last.index, text, tokens, last.num_tokens, last.finish, last.stop_reason)


@dataclass(slots=True)
class Choice:
    """One choice as it grows. A leg that holds ends with its stream, others with a finish."""

    index: int
    call: Call
    detokenizer: Detokenizer
    watch: StopWatch
    num_tokens: int = 0
    cached_tokens: int = 0
    ticket: KvTicket | None = None
    stages: list[StageEvent] = field(default_factory=list)
    _finish: FinishReason | None = None
    _stop_reason: int | str | None = None
    _over: bool = False

    @property
    def stopped(self) -> bool:
        """A stop string is there: what else may come is of no use."""
        return self.watch.found is not None

    def take(self, event: Event) -> Piece | None:
        """What an event adds to the answer; raises StreamFailed for one that is no answer."""
        match event:
            case TokenEvent():
                return self._tokens(event)
            case PromptEvent(cached_tokens=cached):
                self.cached_tokens = cached
            case StageEvent():
                self.stages.append(event)
            case TicketEvent(ticket=ticket):
                self.ticket = ticket
        return None

    def end(self) -> Piece | None:
        """The stream is over; the last piece, if it was not said."""
        if self._over:
            return None
        if not self.call.leg.hold:
            raise StreamFailed("the stream ended before the answer did")
        return self._piece(self._rest(), (), self._finish or FinishReason.LENGTH)

    def _tokens(self, event: TokenEvent) -> Piece:
        if event.finish not in USUAL:
            raise StreamFailed(f"the answer was cut short: {event.finish}")
        silent = event.finish is FinishReason.STOP and not self.watch.include
        text, said = "", 0
        for said, token in enumerate(event.tokens, 1):
            last = said == len(event.tokens)
            text += self._text(token, silent=silent and last)
            if self.stopped:
                break
        ended = event.finish is not None and not self.call.leg.hold
        text += self._rest() if ended else ""
        if self.stopped:
            self._stop_reason = self.watch.found
            return self._piece(text, event.tokens[:said], FinishReason.STOP)
        self._finish, self._stop_reason = event.finish, event.stop_reason
        return self._piece(text, event.tokens, event.finish if ended else None)

    def _text(self, token: int, *, silent: bool) -> str:
        """A token's own text is not said where the token ended the answer."""
        self.num_tokens += 1
        return "" if silent else self._watched(self.detokenizer.add(token))

    def _rest(self) -> str:
        return self._watched(self.detokenizer.finish()) + self.watch.finish()

    def _watched(self, text: str) -> str:
        """Stop strings count from the token after `min_tokens` on."""
        watching = self.num_tokens > self.call.request.sampling.min_tokens
        return self.watch.read(text, watching=watching)

    def _piece(self, text: str, tokens: tuple[int, ...], finish: FinishReason | None) -> Piece:
        self._over = finish is not None
        reason = self._stop_reason if self._over else None
        return Piece(self.index, text, tokens, self.num_tokens, finish, reason)


class Answer:
    """The choices of one request, all of them at once."""

    def __init__(self, generator: Generator, asked: Asked) -> None:
        body, codec = asked.body, asked.codec
        special, include = body.skip_special_tokens, bool(body.include_stop_str_in_output)
        self.asked = asked
        self._generator = generator
        self.choices = [
            Choice(
                index,
                call,
                codec.detokenizer(skip_special_tokens=special is not False),
                asked.stops.watch(include=include),
            )
            for index, call in enumerate(asked.calls)
        ]

    async def pieces(self) -> AsyncGenerator[Piece]:
        """In order of arrival; closing it aborts every choice. Raises StreamFailed."""
        if len(self.choices) == 1:
            async with aclosing(self._of(self.choices[0])) as alone:
                async for piece in alone:
                    yield piece
            return
        async with Streams[int, Piece]() as streams:
            for choice in self.choices:
                streams.open(choice.index, self._of(choice))
            while news := await streams.next():
                yield news[1]

    async def _of(self, choice: Choice) -> AsyncGenerator[Piece]:
        call, piece = choice.call, None
        async with aclosing(self._generator.stream(call.request, call.leg)) as events:
            async for event in events:
                piece = choice.take(event)
                if choice.stopped:
                    break
                if piece is not None:
                    yield piece
        if choice.stopped and piece is not None:
            yield piece
        if last := choice.end():
            yield last
