"""What one request has come to, over all its tries."""

from array import array
from dataclasses import dataclass, field

import msgspec

from api.generator import Event, PromptEvent, Tap, TokenEvent
from discovery.registry import Node
from engine.request import Request
from proxy.errors import NodeFailed, ProxyExhausted
from proxy.timeline.choice import ChoiceTimeline

MOST_LOST = 2


def unscored(request: Request) -> Request:
    """Without the prompt's log-probabilities: who fetches its KV does not run it."""
    if request.sampling.prompt_logprobs is None:
        return request
    sampling = msgspec.structs.replace(request.sampling, prompt_logprobs=None)
    return msgspec.structs.replace(request, sampling=sampling)


@dataclass(slots=True)
class Progress:
    """Grows with each try; `tries` are those since the last token. `timeline` is for logs."""

    request: Request
    timeline: ChoiceTimeline
    tap: Tap | None = None  # where tokens may go past the stream
    tokens: "array[int]" = field(default_factory=lambda: array("i"))  # a ninth of a list's room
    prompted: bool = False
    scored: bool = False  # the prompt's log-probabilities were said
    tries: int = 0  # since the last token
    begun: float = 0.0  # when the latest try did
    failure: NodeFailed | ProxyExhausted | None = None
    failed: set[str] = field(default_factory=set)  # nodes that did not even answer
    met: set[str] = field(default_factory=set)  # those that failed since the last token
    pairs: set[tuple[str, str]] = field(default_factory=set)  # KV got lost between them

    def rest(self) -> Request:
        """The request as the next try has to continue it."""
        if not self.tokens and not self.scored:
            return self.request
        generated = (*self.request.generated, *self.tokens)
        return msgspec.structs.replace(unscored(self.request), generated=generated)

    def note(self, event: Event) -> bool:
        """Book an event; False if the client has seen its like in an earlier try."""
        if isinstance(event, TokenEvent):
            self.said(event.tokens)
            self.tries = 0
            if self.met:
                self.met.clear()
        if isinstance(event, PromptEvent):
            scores = bool(event.logprobs) and not self.scored
            new, self.prompted = scores or not self.prompted, True
            self.scored = self.scored or scores
            return new
        return True

    def said(self, tokens: tuple[int, ...]) -> None:
        """The client gets these."""
        self.tokens.extend(tokens)
        self.timeline.output_tokens += len(tokens)

    def met_with(self, failure: NodeFailed | ProxyExhausted) -> None:
        """Book a try that came to nothing: others are asked first from now on."""
        self.failure, self.tries = failure, self.tries + 1
        if isinstance(failure, ProxyExhausted):
            return
        if failure.pair is not None:
            self.pairs.add(failure.pair)
            return
        self.met.add(failure.node_id)
        if not failure.answered:
            self.failed.add(failure.node_id)

    def may(self, prefill: Node, decode: Node) -> bool:
        """Whether neither it nor what lies between the two has failed this request.

        Whose KV got lost twice does without a hand-over.
        """
        return (
            len(self.pairs) < MOST_LOST
            and prefill.node_id not in self.met
            and (prefill.node_id, decode.node_id) not in self.pairs
        )
