"""Whether a thread that works in turns is late, and whether it was away: two questions.

It is late while a turn is not over when it should be: another thread may have to step in. It
was away if it had been late when it came back: stopped, starved, suspended with its machine, or
kept by a call. What others said meanwhile it could not hear, so it is held against nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.wire import BEAT_S

AWAY_S = 2 * BEAT_S


@dataclass(slots=True)
class TurnWatchdog:
    """Told by the thread whether it waits or works; asked by it, and by who watches it."""

    clock: Callable[[], float]
    due_at: float  # until when it meant to wait; or since when it works
    _away: bool = False
    _doubted: float | None = None

    @property
    def late_s(self) -> float:
        """How long ago it should have begun, or has begun, the turn that is not over."""
        return max(0.0, self.clock() - self.due_at)

    def begin_wait(self, timeout_s: float) -> None:
        """From now on, for so long at most."""
        self.due_at = self.clock() + timeout_s

    def begin_work(self) -> None:
        """The wait is over."""
        self._look()
        self.due_at = self.clock()

    def end_turn(self) -> None:
        """The turn is over: whoever waited to step in has nothing to do any more."""
        self._look()
        self.due_at = self.clock()

    def was_away(self) -> bool:
        """Whether it was, since this was last asked."""
        away, self._away = self._away, False
        return away

    def is_stuck(self, after_s: float) -> bool:
        """Whether the same turn is so late now, and was when this was last asked.

        Once is not enough: who asks may have been away at the same time, and is back first.
        """
        due_at = self.due_at
        doubted, self._doubted = self._doubted, None
        if self.late_s < after_s:
            return False
        self._doubted = due_at
        return doubted == due_at

    def _look(self) -> None:
        self._away = self._away or self.late_s >= AWAY_S
