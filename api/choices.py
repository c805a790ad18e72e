"""One choice of an answer, from token events to pieces of text."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from api.calls import Call
from api.generator import Event, PromptEvent, StageEvent, StreamFailed, TicketEvent, TokenEvent
from api.logprobs import Place
from api.reasoning.reader import ReasoningReader
from api.text.detokenizing import Detokenizer
from api.text.stopping import StopWatch
from engine.request import FinishReason, Logprobs
from kv_transfer.ticket import KvTicket

USUAL = (None, FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one choice's answer; `finish` is set with its last.

    `num_tokens` is how many the choice has up to here: it may be further already. `places`
    are those of its tokens, and before them of an echoed prompt's, where somebody asked for
    log-probabilities; the text of a token may come with a later piece. `reasoning` comes before
    the text.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    num_tokens: int
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    places: tuple[Place, ...] = ()
    reasoning: str = ""


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one choice as one."""
    tokens = tuple(token for piece in pieces for token in piece.tokens)
    places = tuple(place for piece in pieces for place in piece.places)
    text, last = "".join(piece.text for piece in pieces), pieces[-1]
    reasoning = "".join(piece.reasoning for piece in pieces)
    return replace(last, text=text, tokens=tokens, places=places, reasoning=reasoning)


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is part of the answer; `places` where its tokens are to be told of."""

    text: str
    places: tuple[Place, ...] = ()

    @classmethod
    def of(cls, prompt: Sequence[int], detokenizer: Detokenizer, *, tells: bool) -> "Echo":
        """The prompt as its tokens read."""
        text, places = "", list[Place]()
        for token in prompt:
            places.append(Place(token, len(text)))
            text += detokenizer.add(token)
        return cls(text + detokenizer.finish(), tuple(places) if tells else ())


@dataclass(slots=True)
class Choice:
    """One choice as it grows. A leg that holds ends with its stream, others with a finish.

    `thoughts` reads reasoning out of the text, which has `reasoning_tokens`, marks included.
    """

    index: int
    call: Call
    detokenizer: Detokenizer
    watch: StopWatch
    echo: Echo | None = None  # until it was said
    only_echo: bool = False
    thoughts: ReasoningReader | None = None
    reasoning_tokens: int = 0
    num_tokens: int = 0
    cached_tokens: int = 0
    prompt_logprobs: tuple[Logprobs, ...] = ()
    ticket: KvTicket | None = None
    stages: list[StageEvent] = field(default_factory=list)
    _finish: FinishReason | None = None
    _stop_reason: int | str | None = None
    _over: bool = False
    _reasoning: str = ""  # that no piece has said
    _length: int = 0  # characters of text, echo and what is held back included
    _content_tokens: int = 0  # other reasoning may come behind

    @property
    def stopped(self) -> bool:
        """A stop string is there: what else may come is of no use."""
        return self.watch.found is not None

    @property
    def plain(self) -> bool:
        """Whether tokens mean nothing but their text, in which nothing is looked for but where
        reasoning ends.
        """
        return self.watch.idle and not self.only_echo

    @property
    def unread(self) -> bool:
        """Whether no reasoning is looked for in what comes."""
        return self.thoughts is None or self.thoughts.plain

    def add(self, tokens: tuple[int, ...]) -> str:
        """The text of a plain choice's tokens that are neither its first nor its last, nor part
        of its reasoning.
        """
        text = "".join(map(self.detokenizer.add, tokens))
        self.num_tokens += len(tokens)
        self._length += len(text)
        return text

    def take(self, event: Event) -> Piece | None:
        """What an event adds to the answer; raises StreamFailed for one that is no answer."""
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
        ended = event.finish is not None and not self.call.leg.hold
        text, places = self._echoed()
        if self.only_echo:
            return self._piece(text, (), FinishReason.LENGTH if ended else None, places)
        offsets, more = self._read(event)
        text += more + (self._rest() if ended else "")
        tokens = event.tokens[: len(offsets)]
        if event.logprobs:
            places += tuple(map(Place, tokens, offsets, event.logprobs))
        if self.stopped:
            self._stop_reason = self.watch.found
            return self._piece(text, tokens, FinishReason.STOP, places)
        self._finish, self._stop_reason = event.finish, event.stop_reason
        return self._piece(text, tokens, event.finish if ended else None, places)

    def _read(self, event: TokenEvent) -> tuple[list[int], str]:
        """Where the text of each token up to a stop string begins, and the text."""
        ends = event.finish is FinishReason.STOP and not self.watch.include
        offsets, text = list[int](), ""
        for token in event.tokens:
            offsets.append(self._length)
            text += self._text(token, silent=ends and len(offsets) == len(event.tokens))
            if self.watch.found is not None:
                break
        return offsets, text

    def _echoed(self) -> tuple[str, tuple[Place, ...]]:
        """The prompt comes with the first token, and is text that nothing stops."""
        echo, self.echo = self.echo, None
        if echo is None:
            return "", ()
        self._length = len(echo.text)
        ranked = dict(enumerate(self.prompt_logprobs, 1))
        return echo.text, tuple(
            replace(place, ranked=ranked.get(number, ()))
            for number, place in enumerate(echo.places)
        )

    def _text(self, token: int, *, silent: bool) -> str:
        """A token's own text is not said where the token ended the answer."""
        self.num_tokens += 1
        self._content_tokens += self.thoughts is not None and self.thoughts.over
        text = "" if silent else self.detokenizer.add(token)
        self._length += len(text)
        text = self._watched(text)
        return text if self.thoughts is None else self._content(self.thoughts, text)

    def _content(self, thoughts: ReasoningReader, text: str) -> str:
        """The text without its reasoning, which waits for the next piece."""
        open_ = not thoughts.over
        reasoning, content = thoughts.read(text)
        self._reasoning += reasoning
        if open_ and thoughts.thought:
            self.reasoning_tokens = self.num_tokens - self._content_tokens
        return content

    def _rest(self) -> str:
        text = self._watched(self.detokenizer.finish()) + self.watch.finish()
        return text if self.thoughts is None else self._content(self.thoughts, text)

    def _watched(self, text: str) -> str:
        """Stop strings count from the token after `min_tokens` on."""
        watching = self.num_tokens > self.call.request.sampling.min_tokens
        return self.watch.read(text, watching=watching)

    def _piece(
        self,
        text: str,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        places: tuple[Place, ...] = (),
    ) -> Piece:
        self._over = finish is not None
        reason = self._stop_reason if self._over else None
        reasoning, self._reasoning = self._reasoning, ""
        if self._over and self.thoughts is not None:
            held, content = self.thoughts.finish()
            reasoning, text = reasoning + held, text + content
        return Piece(
            *(self.index, text, tokens, self.num_tokens, finish, reason, places, reasoning)
        )
