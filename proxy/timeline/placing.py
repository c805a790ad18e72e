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

from proxy.timeline.marks import Called, Mark, Staged


@dataclass(frozen=True, slots=True)
class Placed:
    """One stage of one leg; times are of the proxy's clock."""

    call: Called | None
    stage: Staged
    began: float
    ended: float


@dataclass(slots=True)
class LegStages:
    """What a node said on one leg; None: nobody called it, as far as the marks go."""

    call: Called | None
    stages: list[Staged] = field(default_factory=list)

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
    """Each leg with its stages, in the order they were opened."""
    legs, latest = list[LegStages](), dict[str, LegStages]()
    for mark in marks:
        if isinstance(mark, Called):
            legs.append(LegStages(mark))
            latest[mark.node] = legs[-1]
        elif isinstance(mark, Staged):
            if mark.node not in latest:
                legs.append(LegStages(None))
                latest[mark.node] = legs[-1]
            latest[mark.node].stages.append(mark)
    return legs
