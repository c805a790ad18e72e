"""Limits how often junk from strangers is logged, since it may come at any rate."""

from dataclasses import dataclass

QUIET_S = 60.0


@dataclass(slots=True)
class LogThrottle:
    """Lets one log line through every `quiet_s`. Time is an argument."""

    quiet_s: float = QUIET_S
    _untold: int = 0
    _told_at: float | None = None

    def count_one(self, now: float) -> int | None:
        """How many there were since the last log line; None: do not log now."""
        self._untold += 1
        if self._told_at is not None and now - self._told_at < self.quiet_s:
            return None
        count, self._untold, self._told_at = self._untold, 0, now
        return count
