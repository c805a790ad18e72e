"""Where the stages of two nodes belong on the proxy's clock. Pure.

Clocks of different machines differ, and by more than a stage takes. So a node says durations,
and how long after the call had come to it (`node_s`) each stage was over: both are differences
of its own clock. When the call came to it, on ours, is known only within bounds: not before the
leg was opened, and for every stage not later than its news came less `node_s`. The
news that was quickest gives the narrowest bounds; their middle is taken, as in NTP (RFC 5905,
section 8), as if way there and way back took equally long. It is wrong by half of what lies
between the bounds at most: half a round trip to that node, and what news has to wait there. All
stages of a leg move together, so what lies between them is as exact as the node's clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proxy.timeline.marks import Called, Ended, Failed, Mark, Planned, Retried, Staged


@dataclass(frozen=True, slots=True)
class Placed:
    """One stage of one leg; times are of the proxy's clock."""

    call: Called | None
    stage: Staged
    began: float
    ended: float


@dataclass(slots=True)
class LegStages:
    """What a node said on one leg; `call` is None where its mark is missing.

    `ended`: when it was over before the choice was.
    """

    call: Called | None
    stages: list[Staged] = field(default_factory=list)
    failed: Failed | None = None
    ended: float | None = None

    def end(self, at: float) -> None:
        """It is over, if it was not before."""
        if self.ended is None:
            self.ended = at

    def placed(self) -> Iterator[Placed]:
        """In the order they were told."""
        came = self._came()
        for one in self.stages:
            ended = one.at if one.node_s is None else came + one.node_s
            yield Placed(self.call, one, ended - one.seconds, ended)

    def _came(self) -> float:
        """When the call came to its node."""
        latest = min(
            (one.at - one.node_s for one in self.stages if one.node_s is not None), default=0.0
        )
        if self.call is None:
            return latest
        return (self.call.at + max(latest, self.call.at)) / 2


def legs_of(marks: Sequence[Mark]) -> list[LegStages]:
    """Each leg with what was heard of it, in the order they were opened."""
    book = _Legs()
    for mark in marks:
        book.read(mark)
    return book.legs


@dataclass(slots=True)
class _Legs:
    """A new attempt closes all legs of the one before, at the failure that ended it."""

    legs: list[LegStages] = field(default_factory=list)
    given_up: float = 0.0
    _latest: dict[str, LegStages] = field(default_factory=dict)

    def read(self, mark: Mark) -> None:
        """The next one."""
        match mark:
            case Called(node=node):
                self._open(node, mark)
            case Staged(node=node):
                (self._latest.get(node) or self._open(node, None)).stages.append(mark)
            case Failed(node=node) | Ended(node=node):
                self._end(mark, self._latest.get(node))
            case Retried():
                self.given_up = mark.at
            case Planned():
                for leg in self.legs:
                    leg.end(self.given_up)

    def _open(self, node: str, call: Called | None) -> LegStages:
        self._latest[node] = leg = LegStages(call)
        self.legs.append(leg)
        return leg

    def _end(self, mark: Failed | Ended, leg: LegStages | None) -> None:
        if leg is not None:
            leg.failed = mark if isinstance(mark, Failed) else None
            leg.end(mark.at)
