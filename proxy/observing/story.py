"""What one choice has come to, for the log and the metrics. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from api.generator import Event, PromptEvent, StageEvent, TokenEvent
from discovery.registration import Role
from discovery.registry import Node
from engine.request import FinishReason, Request
from proxy.routing.policies import Policy

CLOSED, FAILED, POOLED = "closed", "failed", "pooled"


@dataclass(slots=True)
class Story:
    """Grows with each event; seconds count from its beginning.

    `ending` is a finish reason, `closed` by the door (its client left, or a stop string came
    up), or `failed`.
    """

    request: Request
    endpoint: str
    cached_tokens: int = 0
    fetched_tokens: int = 0
    output_tokens: int = 0
    tries: int = 0
    moves: int = 0
    prefill: Node | None = None
    decode: Node | None = None
    first_token_s: float | None = None
    duration_s: float = 0.0
    finish: FinishReason | None = None
    failure: str | None = None
    stages: dict[str, float] = field(default_factory=dict)

    def hear(self, event: Event, elapsed_s: float) -> None:
        """Book one event."""
        if isinstance(event, TokenEvent):
            if self.first_token_s is None:
                self.first_token_s = elapsed_s
            self.output_tokens += len(event.tokens)
            self.finish = event.finish
        elif isinstance(event, PromptEvent):
            self.cached_tokens = event.cached_tokens
            self.fetched_tokens = event.fetched_tokens
        elif isinstance(event, StageEvent):
            self.stages[event.stage] = self.stages.get(event.stage, 0.0) + event.seconds

    @property
    def ending(self) -> str:
        """How it ended."""
        if self.failure is not None:
            return FAILED
        return self.finish.value if self.finish else CLOSED

    def line(self, model: str) -> str:
        """All of it in one line of a log."""
        fields: dict[str, object] = {
            "request_id": self.request.request_id,
            "endpoint": self.endpoint,
            "model": model,
            "prompt_tokens": len(self.request.prompt),
            "cached_tokens": self.cached_tokens,
            "fetched_tokens": self.fetched_tokens,
            "output_tokens": self.output_tokens,
            "finish": self.ending,
            "nodes": self._nodes(),
            "tries": self.tries,
            "first_token_s": _rounded(self.first_token_s),
            "total_s": _rounded(self.duration_s),
            **{f"{stage}_s": _rounded(seconds) for stage, seconds in self.stages.items()},
        }
        if self.moves:
            fields["moves"] = self.moves
        if self.failure is not None:
            fields["reason"] = repr(self.failure)
        return " ".join(f"{name}={value}" for name, value in fields.items())

    def _nodes(self) -> str:
        """Of the last try; a decode node alone has run the prompt too."""
        nodes = [node for node in (self.prefill, self.decode) if node]
        return "->".join(node.registration.http_address for node in nodes) or "-"


@dataclass(frozen=True, slots=True)
class NotedPolicy:
    """Another policy whose choices become part of a story."""

    policy: Policy
    story: Story

    def choose(self, nodes: Sequence[Node], request: Request, partner: Node | None) -> Node:
        """Decode is chosen first, without a partner: that begins a try.

        With one, it takes another's place in a hand-over.
        """
        chosen = self.policy.choose(nodes, request, partner)
        if partner is None:
            self.story.tries += 1
            self.story.prefill, self.story.decode = None, chosen
        elif chosen.role is Role.DECODE:
            self.story.moves, self.story.decode = self.story.moves + 1, chosen
        else:
            self.story.prefill = chosen
        return chosen


def _rounded(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.4f}"
