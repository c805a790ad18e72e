"""Places the stages that nodes report on the proxy's clock. Pure.

The clocks of two machines may differ by more than a stage takes. So a node reports only
durations: how long each stage took, and how long after the arrival of the call it ended
(`node_s`). The arrival, on the proxy's clock, lies within bounds: not before the leg was
opened, and for each stage not later than the arrival of its event minus `node_s`. The event
that was delayed least gives the narrowest bounds, and their middle is taken, as in NTP (RFC
5905, section 8), as if both directions took equally long. The error is at most half the
distance of the bounds: half a round trip, plus the time that events wait at the node. All
stages of a leg are shifted together, so the time between them is as exact as the node's clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from proxy.timeline.events import (
    AttemptPlanned,
    LegEnded,
    LegFailed,
    LegOpened,
    RetryDecided,
    StageEnded,
    TimelineEvent,
)


@dataclass(frozen=True, slots=True)
class PlacedStage:
    """A stage of a leg, with its begin and end on the proxy's clock, in seconds."""

    call: LegOpened | None
    stage: StageEnded
    began: float
    ended: float


@dataclass(slots=True)
class LegTimeline:
    """The events of one leg; `call` is None if its LegOpened was dropped.

    `ended`: when the leg ended, if that was before the choice did.
    """

    call: LegOpened | None
    stages: list[StageEnded] = field(default_factory=list)
    failed: LegFailed | None = None
    ended: float | None = None

    def end(self, at: float) -> None:
        """It ends now, unless it has ended already."""
        if self.ended is None:
            self.ended = at

    def placed(self) -> Iterator[PlacedStage]:
        """The stages in the order in which the node reported them."""
        arrived = self._arrival()
        for one in self.stages:
            ended = one.at if one.node_s is None else arrived + one.node_s
            yield PlacedStage(self.call, one, ended - one.seconds, ended)

    def _arrival(self) -> float:
        """The middle of the bounds on when the call arrived at its node."""
        latest = min(
            (one.at - one.node_s for one in self.stages if one.node_s is not None), default=0.0
        )
        if self.call is None:
            return latest
        return (self.call.at + max(latest, self.call.at)) / 2


def leg_timelines(events: Sequence[TimelineEvent]) -> list[LegTimeline]:
    """The legs of a choice in the order in which they were opened."""
    sorted_legs = _Legs()
    for event in events:
        sorted_legs.add(event)
    return sorted_legs.legs


@dataclass(slots=True)
class _Legs:
    """Sorts events by leg. A new attempt ends all legs of the one that failed before it."""

    legs: list[LegTimeline] = field(default_factory=list)
    given_up: float = 0.0
    _latest: dict[str, LegTimeline] = field(default_factory=dict)

    def add(self, event: TimelineEvent) -> None:
        """Take the next event."""
        match event:
            case LegOpened(node=node):
                self._open(node, event)
            case StageEnded(node=node):
                (self._latest.get(node) or self._open(node, None)).stages.append(event)
            case LegFailed(node=node) | LegEnded(node=node):
                self._end(event, self._latest.get(node))
            case RetryDecided():
                self.given_up = event.at
            case AttemptPlanned():
                for leg in self.legs:
                    leg.end(self.given_up)

    def _open(self, node: str, call: LegOpened | None) -> LegTimeline:
        self._latest[node] = leg = LegTimeline(call)
        self.legs.append(leg)
        return leg

    def _end(self, event: LegFailed | LegEnded, leg: LegTimeline | None) -> None:
        if leg is not None:
            leg.failed = event if isinstance(event, LegFailed) else None
            leg.end(event.at)
