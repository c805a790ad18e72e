"""A circuit breaker, after M. Nygard's "Release It!". Pure: time is an argument.

```
            fault, or `told` of them in a row
   CLOSED ──────────────────────────────────▶ OPEN ◀────────────┐
     ▲                                         │ its time is up, │
     │ a call that began since                 │ and it was heard│ a call that
     │ went well                               ▼ of since        │ began since failed:
     └──────────────────────────────────── HALF_OPEN ────────────┘ twice the time
```

What began before it opened says nothing that is not known: a hundred streams that break at once
are one fault, and tokens of the ninety-nine that did not break are no reason to close it.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """Half open, it lets one call through at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """Seconds, but for `told`: how many failures in a row that the other side itself owned up
    to open a breaker. One that it did not, such as a broken stream, does at once.
    """

    reported_limit: int = 3
    open_s: float = 1.0  # at first; from then on twice as long each time
    longest_s: float = 30.0
    reset_s: float = 60.0  # closed for so long, it is as good as new
    probe_s: float = 15.0  # who lets a call through and hears nothing of it may do so again


@dataclass(slots=True)
class Breaker:
    """`opened_at` is None while it is closed. `level`: how often it opened without a calm.

    `why`: what the last failure was.
    """

    rules: BreakerRules
    opened_at: float | None = None
    closed_at: float = 0.0
    times_opened: int = 0
    reported_failures: int = 0
    probe_at: float | None = None
    last_failure: str | None = None

    def state(self, *, now: float, heard_at: float) -> BreakerState:
        """`heard_at`: when there last was a sign of life that was no call of ours."""
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
        """A call is sent: half open, there is no other until something is heard of it.

        One of an attempt that began before it opened is none of those: see above.
        """
        if self.opened_at is not None and now >= self.opened_at:
            self.probe_at = now

    def end(self, *, begun: float) -> None:
        """The call that began then was given up, and says nothing."""
        if self.probe_at == begun:
            self.probe_at = None

    def failed(self, *, begun: float, now: float, sure: bool) -> bool:
        """A call that began at `begun` failed; answers whether that opened it.

        `sure`: not of its own accord.
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
        """A call that began at `begun` went well."""
        if self.opened_at is None:
            self.reported_failures = 0
        elif begun >= self.opened_at:
            self.opened_at, self.probe_at, self.closed_at = None, None, now

    def restart(self) -> None:
        """It is of a new process now, which did nothing wrong: half open, if not closed."""
        self.reported_failures, self.probe_at = 0, None
        if self.opened_at is not None:
            self.opened_at = -math.inf

    def is_reset(self, *, now: float) -> bool:
        """Whether it is like one that never heard of anything."""
        return (
            self.opened_at is None
            and not self.reported_failures
            and now - self.closed_at >= self.rules.reset_s
        )

    def is_stale(self, *, now: float) -> bool:
        """Whether it opened so long ago that nobody has tried since, though somebody might."""
        since = self.closed_at if self.opened_at is None else self.opened_at
        return now - since >= self.rules.reset_s

    @property
    def open_for_s(self) -> float:
        """How long it stays open this time."""
        doubled = self.rules.open_s * 2.0 ** min(self.times_opened - 1, 32)
        return min(doubled, self.rules.longest_s)
