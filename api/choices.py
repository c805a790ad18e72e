"""The state of one choice: token events in, pieces of text, reasoning and logprobs out."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from api.generator import Event, PromptEvent, StageEvent, StreamFailed, TicketEvent, TokenEvent
from api.logprobs import ScoredToken
from api.reasoning.reader import ReasoningReader
from api.text.detokenizing import Detokenizer
from api.text.stopping import StopMatcher
from api.text_requests import GeneratorCall
from engine.request import FinishReason, Logprobs
from kv_transfer.ticket import KvTicket

NORMAL_FINISHES = (None, FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A part of one choice's answer; `finish` is set in its last.

    `num_tokens` is how many tokens the choice has up to this piece. `scored_tokens` are an
    echoed prompt's and then the piece's own, where log-probabilities were asked for; the text
    of a token may come with a later piece. `reasoning` comes before the text; the answer's
    first text begins behind `content_start` characters of reasoning and its marks.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    num_tokens: int
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    scored_tokens: tuple[ScoredToken, ...] = ()
    reasoning: str = ""
    content_start: int = 0


def join_pieces(pieces: Sequence[TextPiece]) -> TextPiece:
    """All pieces of one choice, joined into one."""
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    scored = tuple(one for piece in pieces for one in piece.scored_tokens)
    text, last = "".join(piece.text for piece in pieces), pieces[-1]
    reasoning = "".join(piece.reasoning for piece in pieces)
    return replace(last, text=text, tokens=tokens, scored_tokens=scored, reasoning=reasoning)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt's text, which the answer repeats; `scored_tokens` where logprobs are wanted."""

    text: str
    scored_tokens: tuple[ScoredToken, ...] = ()

    @classmethod
    def of(cls, prompt: Sequence[int], detokenizer: Detokenizer, *, tells: bool) -> "Echo":
        """The prompt, decoded token by token."""
        text, places = "", list[ScoredToken]()
        for token in prompt:
            places.append(ScoredToken(token, len(text)))
            text += detokenizer.add(token)
        return cls(text + detokenizer.finish(), tuple(places) if tells else ())


@dataclass(slots=True)
class ChoiceState:
    """One choice while it is generated; a prefill leg ends with its stream, others by a finish.

    `reasoning_reader` splits reasoning from the text; `reasoning_tokens` counts its tokens,
    marks included.
    """

    index: int
    call: GeneratorCall
    detokenizer: Detokenizer
    stop_matcher: StopMatcher
    echo: Echo | None = None  # until it was sent
    only_echo: bool = False
    reasoning_reader: ReasoningReader | None = None
    reasoning_tokens: int = 0
    num_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: tuple[Logprobs, ...] = ()
    ticket: KvTicket | None = None
    stages: list[StageEvent] = field(default_factory=list)
    _finish: FinishReason | None = None
    _stop_reason: int | str | None = None
    _finished: bool = False
    _reasoning: str = ""  # not sent with a piece yet
    _length: int = 0  # characters of text, echo and what is held back included
    _content_tokens: int = 0  # other reasoning may come behind

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the answer: later tokens are dropped."""
        return self.stop_matcher.found is not None

    @property
    def can_leave(self) -> bool:
        """Whether its stream need not be read further; a prefill leg's is read to its end."""
        return self.stopped and not self.call.leg.hold

    @property
    def is_plain_text(self) -> bool:
        """Whether there are neither stop strings to look for nor an echo without an answer."""
        return self.stop_matcher.has_no_strings and not self.only_echo

    @property
    def reasoning_done(self) -> bool:
        """Whether the rest of the answer need not be searched for reasoning."""
        return self.reasoning_reader is None or self.reasoning_reader.plain

    def add_plain_tokens(self, tokens: tuple[int, ...]) -> str:
        """The text of further tokens of a plain-text choice.

        They are neither its first nor its last, and not part of its reasoning.
        """
        text = "".join(map(self.detokenizer.add, tokens))
        self.num_tokens += len(tokens)
        self._length += len(text)
        return text

    def process_event(self, event: Event) -> TextPiece | None:
        """The piece that an event adds, if any; raises StreamFailed on an answer cut short."""
        match event:
            case TokenEvent():
                return self._tokens(event)
            case PromptEvent(cached_tokens=cached, logprobs=ranked):
                self.cached_tokens = cached
                self.prompt_logprobs = ranked or self.prompt_logprobs
            case StageEvent():
                self.stages.append(event)
            case TicketEvent(ticket=ticket):
                self.ticket = ticket
        return None

    def end_stream(self) -> TextPiece | None:
        """The Generator's stream has ended: the last piece, unless it was returned already."""
        if self._finished:
            return None
        if not self.call.leg.hold:
            raise StreamFailed("the stream ended before the answer did")
        return self._piece(self._flush_text(), (), self._finish or FinishReason.LENGTH)

    def _tokens(self, event: TokenEvent) -> TextPiece:
        if event.finish not in NORMAL_FINISHES:
            raise StreamFailed(f"the answer was cut short: {event.finish}")
        ended = event.finish is not None and not self.call.leg.hold
        text, places = self._echoed()
        if self.only_echo:
            return self._piece(text, (), FinishReason.LENGTH if ended else None, places)
        offsets, more = self._read(event)
        text += more + (self._flush_text() if ended else "")
        tokens = event.tokens[: len(offsets)]
        if event.logprobs:
            places += tuple(map(ScoredToken, tokens, offsets, event.logprobs))
        if self.stopped:
            self._stop_reason = self.stop_matcher.found
            return self._piece(text, tokens, FinishReason.STOP, places)
        self._finish, self._stop_reason = event.finish, event.stop_reason
        return self._piece(text, tokens, event.finish if ended else None, places)

    def _read(self, event: TokenEvent) -> tuple[list[int], str]:
        """The text offset of each token up to a stop string, and their text."""
        ends = event.finish is FinishReason.STOP and not self.stop_matcher.include
        offsets, text = list[int](), ""
        for token in event.tokens:
            offsets.append(self._length)
            text += self._text(token, silent=ends and len(offsets) == len(event.tokens))
            if self.stop_matcher.found is not None:
                break
        return offsets, text

    def _echoed(self) -> tuple[str, tuple[ScoredToken, ...]]:
        """The prompt, once, with the first token; stop strings are not looked for in it."""
        echo, self.echo = self.echo, None
        if echo is None:
            return "", ()
        self._length = len(echo.text)
        ranked = dict(enumerate(self.prompt_logprobs, 1))
        return echo.text, tuple(
            replace(place, ranked=ranked.get(number, ()))
            for number, place in enumerate(echo.scored_tokens)
        )

    def _text(self, token: int, *, silent: bool) -> str:
        """The token's text; none (`silent`) where it is the stop token that ends the answer."""
        self.num_tokens += 1
        self._content_tokens += self.reasoning_reader is not None and self.reasoning_reader.over
        text = "" if silent else self.detokenizer.add(token)
        self._length += len(text)
        text = self._match_stops(text)
        return (
            text
            if self.reasoning_reader is None
            else self._split_reasoning(self.reasoning_reader, text)
        )

    def _split_reasoning(self, reader: ReasoningReader, text: str) -> str:
        """The content in the text; its reasoning is kept for the next piece."""
        open_ = not reader.over
        reasoning, content = reader.read(text)
        self._reasoning += reasoning
        if open_ and reader.found_reasoning:
            self.reasoning_tokens = self.num_tokens - self._content_tokens
        return content

    def _flush_text(self) -> str:
        text = self._match_stops(self.detokenizer.finish()) + self.stop_matcher.finish()
        return (
            text
            if self.reasoning_reader is None
            else self._split_reasoning(self.reasoning_reader, text)
        )

    def _match_stops(self, text: str) -> str:
        """Stop strings count from the token after `min_tokens` on."""
        watching = self.num_tokens > self.call.request.sampling.min_tokens
        return self.stop_matcher.read(text, watching=watching)

    def _piece(
        self,
        text: str,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        places: tuple[ScoredToken, ...] = (),
    ) -> TextPiece:
        self._finished = finish is not None
        reason = self._stop_reason if self._finished else None
        reasoning, self._reasoning = self._reasoning, ""
        if self._finished and self.reasoning_reader is not None:
            held, content = self.reasoning_reader.finish()
            reasoning, text = reasoning + held, text + content
        reader = self.reasoning_reader
        start = reader.content_start if reader is not None else 0
        return TextPiece(
            *(self.index, text, tokens, self.num_tokens, finish, reason, places, reasoning),
            content_start=start,
        )
