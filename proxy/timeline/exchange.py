"""One HTTP request and its answer: what its choices have in common."""

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from proxy.timeline.story import Story
from proxy.timeline.trace import Trace


@dataclass(slots=True, eq=False)
class Exchange:
    """From the first byte to the last, or to the client's leaving.

    `received` and `ended` are times of the proxy's clock, `unix_s` is the former for people;
    `owner` is whose key it came with, "" where there are no keys. `request_id` is the client's
    name for it, known once the answer begins. What is not yet is None.
    """

    received: float
    unix_s: float = 0.0
    endpoint: str = "-"
    owner: str = ""
    request_id: str = ""
    status: int | None = None
    trace: Trace | None = None
    stories: list[Story] = field(default_factory=list)
    tokenized: float | None = None
    admitted: float | None = None  # it had its turn, where there was a line
    ended: float | None = None

    def steps(self) -> Iterator[tuple[str, float, float]]:
        """What the proxy itself did before it called anybody: name, beginning and end."""
        first = self.stories[0] if self.stories else None
        tokenized = self.tokenized
        if tokenized is None and first is not None:
            tokenized = first.begun
        if tokenized is not None:
            yield "tokenize", self.received, tokenized
            if self.admitted is not None:
                yield "admission", tokenized, self.admitted
        if first and first.planned_at is not None:
            yield "plan", first.begun, first.planned_at


current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""Which one the running code belongs to: choices are told apart in what is passed."""
