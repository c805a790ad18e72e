"""A circuit breaker, after M. Nygard's "Release It!". Pure: time is an argument.

```
 fault, or `reported_limit` failures in a row
   CLOSED ──────────────────────────────────▶ OPEN ◀────────────┐
     ▲                                         │ its time is up, │
     │ a call that began since                 │ with a heartbeat│ a call that
     │ succeeded                               ▼ since           │ began since failed:
     └──────────────────────────────────── HALF_OPEN ────────────┘ twice the time
```

Calls that began before it opened do not count: a hundred streams that break at once are one
fault, and tokens of streams that did not break are no reason to close it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """In the half-open state it lets one call through at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """`reported_limit`: this many failures in a row that the node itself reported open a
    breaker.

    Any other failure, such as a broken stream, opens it at once. The rest are seconds.
    """

    reported_limit: int = 3
    open_s: float = 1.0  # at first; doubled each time
    longest_s: float = 30.0
    reset_s: float = 60.0  # after being closed this long, it is like a new one
    # half-open, another call may go if the last one had no result for this long
    probe_s: float = 15.0


@dataclass(slots=True)
class Breaker:
    """`opened_at` is None while it is closed. `times_opened`: since it was last reset."""

    rules: BreakerRules
    opened_at: float | None = None
    closed_at: float = 0.0
    times_opened: int = 0
    reported_failures: int = 0
    probe_at: float | None = None
    last_failure: str | None = None

    def state(self, *, now: float, heard_at: float) -> BreakerState:
        """The state now; `heard_at` is the time of the last heartbeat."""
        if self.opened_at is None:
            return BreakerState.CLOSED
        waits = now - self.opened_at < self.open_for_s or heard_at <= self.opened_at
        return BreakerState.OPEN if waits else BreakerState.HALF_OPEN

    def admits(self, *, now: float, heard_at: float) -> bool:
        """Whether a call may be sent."""
        state = self.state(now=now, heard_at=heard_at)
        if state is BreakerState.HALF_OPEN:
            return self.probe_at is None or now - self.probe_at >= self.rules.probe_s
        return state is BreakerState.CLOSED

    def begin(self, *, now: float) -> None:
        """A call of an attempt that began `now` is sent: half-open, it is the only one until it
        ends. An attempt from before the breaker opened does not count.
        """
        if self.opened_at is not None and now >= self.opened_at:
            self.probe_at = now

    def end(self, *, begun: float) -> None:
        """The call of the attempt that began then ended without a result."""
        if self.probe_at == begun:
            self.probe_at = None

    def failed(self, *, begun: float, now: float, sure: bool) -> bool:
        """A call that began at `begun` failed; returns whether that opened the breaker.

        `sure`: the node did not report it itself, so one failure is enough.
        """
        if self.opened_at is not None:
            if begun < self.opened_at:
                return False
        else:
            self.reported_failures += 1
            if not sure and self.reported_failures < self.rules.reported_limit:
                return False
            if now - self.closed_at >= self.rules.reset_s:
                self.times_opened = 0
        self.opened_at, self.probe_at, self.reported_failures = now, None, 0
        self.times_opened += 1
        return True

    def succeeded(self, *, begun: float, now: float) -> None:
        """A call that began at `begun` succeeded."""
        if self.opened_at is None:
            self.reported_failures = 0
        elif begun >= self.opened_at:
            self.opened_at, self.closed_at = None, now

    def restart(self) -> None:
        """The node restarted: half-open, if not closed."""
        self.reported_failures, self.probe_at = 0, None
        if self.opened_at is not None:
            self.opened_at = -math.inf

    def is_reset(self, *, now: float) -> bool:
        """Whether it is like a new one."""
        return (
            self.opened_at is None
            and not self.reported_failures
            and now - self.closed_at >= self.rules.reset_s
        )

    def is_stale(self, *, now: float) -> bool:
        """Whether its state last changed so long ago that it no longer means anything."""
        since = self.closed_at if self.opened_at is None else self.opened_at
        return now - since >= self.rules.reset_s

    @property
    def open_for_s(self) -> float:
        """How long it stays open this time: doubled each time."""
        doubled = self.rules.open_s * 2.0 ** min(self.times_opened - 1, 32)
        return min(doubled, self.rules.longest_s)
