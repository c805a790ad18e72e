"""The timeline of one HTTP request: what its choices have in common."""

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from proxy.timeline.choice import ChoiceTimeline
from proxy.timeline.trace import Trace


@dataclass(slots=True, eq=False)
class HttpExchange:
    """From the first byte of the request to the last of the answer, or until the client left.

    Times are of the proxy's clock; `unix_s` is `received` as a Unix time. `owner` is the name
    of the caller's key, "" without keys. `request_id` is the id that the client sees, known
    once the answer begins. Fields are None until they happen.
    """

    received: float
    unix_s: float = 0.0
    endpoint: str = "-"
    owner: str = ""
    request_id: str = ""
    status: int | None = None
    trace: Trace | None = None
    choices: list[ChoiceTimeline] = field(default_factory=list)
    tokenized: float | None = None
    admitted: float | None = None  # None if nothing limits admission
    ended: float | None = None

    def steps(self) -> Iterator[tuple[str, float, float]]:
        """The proxy's own stages before its first call of a node: name, begin and end."""
        first = self.choices[0] if self.choices else None
        tokenized = self.tokenized
        if tokenized is None and first is not None:
            tokenized = first.begun
        if tokenized is not None:
            yield "tokenize", self.received, tokenized
            if self.admitted is not None:
                yield "admission", tokenized, self.admitted
        if first and first.planned_at is not None:
            yield "plan", first.begun, first.planned_at


current: ContextVar[HttpExchange | None] = ContextVar("exchange", default=None)
"""The HTTP request that the running task serves; its ChoiceTimelines are passed on."""
