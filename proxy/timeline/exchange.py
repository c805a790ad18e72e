"""One HTTP request and its answer: what its choices have in common."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from proxy.timeline.story import Story
from proxy.timeline.trace import Trace


@dataclass(slots=True, eq=False)
class Exchange:
    """From the first byte to the last, or to the client's leaving.

    `received` and `ended` are times of the proxy's clock, `unix_s` is the former for people;
    `owner` is whose key it came with, "" where there are no keys. `request_id` is the client's
    name for it, known once the answer begins.
    """

    received: float
    unix_s: float = 0.0
    endpoint: str = "-"
    owner: str = ""
    request_id: str = ""
    status: int | None = None
    trace: Trace | None = None
    stories: list[Story] = field(default_factory=list)
    ended: float | None = None


current: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
"""Which one the running code belongs to: choices are told apart in what is passed."""
