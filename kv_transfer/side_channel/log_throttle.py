"""Junk from strangers is told of, but not each time: it may come at any rate."""

from dataclasses import dataclass

QUIET_S = 60.0


@dataclass(slots=True)
class LogThrottle:
    """Time is an argument."""

    quiet_s: float = QUIET_S
    _untold: int = 0
    _told_at: float | None = None

    def count_one(self, now: float) -> int | None:
        """How many there were since this was last told; None: do not tell now."""
        self._untold += 1
        if self._told_at is not None and now - self._told_at < self.quiet_s:
            return None
        count, self._untold, self._told_at = self._untold, 0, now
        return count
