"""What the client has received of a request over all attempts, and which nodes failed it."""

from array import array
from dataclasses import dataclass, field

import msgspec

from api.generator import Event, PromptEvent, Tap, TokenEvent
from discovery.node import Node
from engine.request import Request
from proxy.errors import NodeFailed, ProxyExhausted
from proxy.timeline.choice import ChoiceTimeline

MAX_LOST_PAIRS = 2


def without_prompt_logprobs(request: Request) -> Request:
    """For a decode leg: a node that fetches the KV does not run the prompt."""
    if request.sampling.prompt_logprobs is None:
        return request
    sampling = msgspec.structs.replace(request.sampling, prompt_logprobs=None)
    return msgspec.structs.replace(request, sampling=sampling)


@dataclass(slots=True)
class Progress:
    """Updated by each attempt."""

    request: Request
    timeline: ChoiceTimeline
    tap: Tap | None = None  # where tokens may bypass the stream
    # a ninth of a list's memory
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    prompt_sent: bool = False  # the client has received a PromptEvent
    prompt_scored: bool = False  # one with the prompt's log-probabilities
    tries: int = 0  # failed since the last token
    attempt_start: float = 0.0  # of the latest attempt
    last_failure: NodeFailed | ProxyExhausted | None = None
    unresponsive_nodes: set[str] = field(default_factory=set)  # they did not even answer
    failed_nodes: set[str] = field(
        default_factory=set
    )  # those that failed since the last token
    failed_pairs: set[tuple[str, str]] = field(default_factory=set)  # KV got lost between them

    def remaining_request(self) -> Request:
        """The request as the next attempt has to continue it."""
        if not self.tokens and not self.prompt_scored:
            return self.request
        generated = (*self.request.generated, *self.tokens)
        return msgspec.structs.replace(
            without_prompt_logprobs(self.request), generated=generated
        )

    @property
    def only_end_missing(self) -> bool:
        """Whether the client has as many tokens as it asked for, but not the answer's end."""
        count = len(self.request.generated) + len(self.tokens)
        return bool(self.tokens) and count >= self.request.sampling.max_tokens

    def record_event(self, event: Event) -> bool:
        """Record an event; False if the client got the same kind from an earlier attempt."""
        if isinstance(event, TokenEvent):
            self.record_tokens(event.tokens)
            self.tries = 0
            if self.failed_nodes:
                self.failed_nodes.clear()
        if isinstance(event, PromptEvent):
            scores = bool(event.logprobs) and not self.prompt_scored
            new, self.prompt_sent = scores or not self.prompt_sent, True
            self.prompt_scored = self.prompt_scored or scores
            return new
        return True

    def record_tokens(self, tokens: tuple[int, ...]) -> None:
        """Record tokens that go to the client."""
        self.tokens.extend(tokens)
        self.timeline.output_tokens += len(tokens)

    def record_failure(self, failure: NodeFailed | ProxyExhausted) -> None:
        """Record a failed attempt: other nodes are preferred from now on."""
        self.last_failure, self.tries = failure, self.tries + 1
        if isinstance(failure, ProxyExhausted):
            return
        if failure.pair is not None:
            self.failed_pairs.add(failure.pair)
            return
        self.failed_nodes.add(failure.node_id)
        if not failure.node_alive:
            self.unresponsive_nodes.add(failure.node_id)

    def may_pair(self, prefill: Node, decode: Node) -> bool:
        """Whether neither the prefill node nor KV transfer between the two failed this request.

        After `MAX_LOST_PAIRS` lost transfers no pair may be used: decode runs the prompt.
        """
        return (
            len(self.failed_pairs) < MAX_LOST_PAIRS
            and prefill.node_id not in self.failed_nodes
            and (prefill.node_id, decode.node_id) not in self.failed_pairs
        )
