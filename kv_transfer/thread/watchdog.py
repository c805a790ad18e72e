"""Whether a thread that works in turns is late, and whether it was away.

It is late while a turn is not over when it should be: another thread may have to step in. It
was away if it found itself late: stopped, starved, suspended with its machine, or held up by a
call. It could not hear peers meanwhile, so their silence is not counted against them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.wire import BEAT_S

AWAY_S = 2 * BEAT_S


@dataclass(slots=True)
class TurnWatchdog:
    """The thread reports whether it waits or works; it and its supervisor ask."""

    clock: Callable[[], float]
    due_at: float  # until when it meant to wait; or since when it works
    _away: bool = False
    _doubted: float | None = None

    @property
    def late_s(self) -> float:
        """For how long the current turn has been overdue, or has been running."""
        return max(0.0, self.clock() - self.due_at)

    def begin_wait(self, timeout_s: float) -> None:
        """The thread waits from now on, for at most `timeout_s`."""
        self.due_at = self.clock() + timeout_s

    def begin_work(self) -> None:
        """The wait is over and the turn begins."""
        self._look()
        self.due_at = self.clock()

    def end_turn(self) -> None:
        """The turn is over, so there is no need to step in."""
        self._look()
        self.due_at = self.clock()

    def was_away(self) -> bool:
        """Whether the thread was away since the last call."""
        away, self._away = self._away, False
        return away

    def is_stuck(self, after_s: float) -> bool:
        """Whether the same turn is this late now, and was at the previous call.

        Once is not enough: the caller may have been away at the same time, and be back first.
        """
        due_at = self.due_at
        doubted, self._doubted = self._doubted, None
        if self.late_s < after_s:
            return False
        self._doubted = due_at
        return doubted == due_at

    def _look(self) -> None:
        self._away = self._away or self.late_s >= AWAY_S
