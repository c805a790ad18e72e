"""Health checks of a node that is probed: several answers in a row change its state. Pure."""

from dataclasses import dataclass

RISE, FALL = 2, 3


@dataclass(slots=True)
class Probe:
    """Up until `fall` answers in a row were bad; down until `rise` in a row were good."""

    rise: int = RISE
    fall: int = FALL
    up: bool = True
    _against: int = 0  # answers in a row that contradict `up`

    def record_answer(self, *, well: bool) -> bool:
        """Record an answer, or that there was none; returns whether the node is up."""
        self._against = 0 if well is self.up else self._against + 1
        if self._against >= (self.fall if self.up else self.rise):
            self.up, self._against = well, 0
        return self.up
