"""Reads the frames of one leg as events for the pipeline, of pdserve and vLLM nodes. Pure.

A vLLM prefill leg is asked for one token, and ends with the ticket in its answer. Unless the
token is the whole answer it is dropped, since the decode leg sends it again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from api.generated import decode_event
from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    Leg,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from api.wire import WireError
from engine.request import FinishReason, Request
from proxy.nodes.answer_size import LEAST_LIMIT, longest_answer

LONGEST_TOKEN = 10  # digits; a frame with more is parsed


@dataclass(slots=True)
class LegReader:
    """One leg's frames, in order; `over` once there is nothing left to wait for."""

    hold: bool
    ours: bool
    wanted: int  # tokens that are missing from the answer
    longest: int = LEAST_LIMIT  # bytes of one frame
    decode: Callable[[bytes], Sequence[Event]] = decode_event
    over: bool = False
    _tokens: int = 0  # of a leg that holds
    _ticket: bool = False
    # bytes around the token in the first frame of one token
    _token_frame: tuple[bytes, bytes] | None = None

    @classmethod
    def of(cls, request: Request, leg: Leg, *, ours: bool) -> "LegReader":
        """For the answer to this call."""
        wanted = request.sampling.max_tokens - len(request.generated)
        return cls(leg.hold, ours, wanted, longest_answer(request))

    def read_plain_tokens(self, frames: Sequence[bytes]) -> TokenEvent | None:
        """The fast path: tokens of frames that differ from an earlier one only in the token.

        Such frames need not be parsed. None: call `read`.
        """
        if self._token_frame is None:
            return None
        (head, tail), tokens = self._token_frame, list[int]()
        for frame in frames:
            digits = frame[len(head) : len(frame) - len(tail)]
            if not (digits.isdigit() and len(digits) < LONGEST_TOKEN):
                return None
            if not (frame.startswith(head) and frame.endswith(tail)):
                return None
            tokens.append(int(digits))
        return TokenEvent(tuple(tokens)) if tokens else None

    def read(self, frames: Sequence[bytes]) -> Iterator[Event]:
        """Yield events for the pipeline; raises WireError, also for an end that is too early.

        Tokens of several frames are one event; stages that ended in between come before it.
        """
        tokens: TokenEvent | None = None
        try:
            for event in self._heard(frames):
                if isinstance(event, TokenEvent) and event.tokens:
                    tokens = _joined(tokens, event) if tokens else event
                    continue
                if tokens and not isinstance(event, StageEvent):
                    yield tokens
                    tokens = None
                yield event
        except WireError:
            if tokens:
                yield tokens
            raise
        if tokens:
            yield tokens

    def _heard(self, frames: Sequence[bytes]) -> Iterator[Event]:
        for frame in frames:
            events = self.decode(frame)
            if self.ours and not self.hold and self._token_frame is None:
                self._token_frame = _around(frame, events)
            for event in events:
                if (kept := self._keep(event)) is not None:
                    yield kept
                if self.over:
                    return

    def _keep(self, event: Event) -> Event | None:
        match event:
            case TokenEvent():
                return self._token(event)
            case EndEvent():
                return self._end(event)
            case TicketEvent():
                self._ticket = True
                return event if self.hold else None
            case FailedEvent():
                self.over = True
        return event

    def _token(self, event: TokenEvent) -> TokenEvent | None:
        self._tokens += len(event.tokens)
        if self.hold and not self.ours:
            whole = event.finish is not FinishReason.LENGTH or self._tokens >= self.wanted
            return event if event.finish and whole else None
        if not self.ours and self._tokens > self.wanted:
            raise WireError(f"more than the {self.wanted} tokens that were asked for")
        self.over = event.finish is not None and not self.hold
        return event

    def _end(self, event: EndEvent) -> EndEvent | None:
        said = self._tokens and (self._ticket or not self.ours) if self.hold else self.over
        if not said:
            raise WireError("it ended too early")
        self.over = True
        return event if self.hold else None


def _around(frame: bytes, events: Sequence[Event]) -> tuple[bytes, bytes] | None:
    """The bytes before and after the token in a frame with one token and nothing else.

    JSON strings escape quotes, so the bytes found are the key itself.
    """
    if len(events) != 1 or not isinstance(said := events[0], TokenEvent):
        return None
    if said != TokenEvent(said.tokens[:1]) or frame.count(b"token_ids") != 1:
        return None
    before, key, behind = frame.partition(b'"token_ids":[%d]' % said.tokens[0])
    return (before + key[: key.index(b"[") + 1], b"]" + behind) if key else None


def _joined(one: TokenEvent, two: TokenEvent) -> TokenEvent:
    tokens, logprobs = one.tokens + two.tokens, one.logprobs + two.logprobs
    return TokenEvent(tokens, two.finish, two.stop_reason, logprobs)
