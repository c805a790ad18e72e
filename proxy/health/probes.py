"""Whether a node that is asked again and again is up: not by one answer. Pure."""

from dataclasses import dataclass

RISE, FALL = 2, 3


@dataclass(slots=True)
class Probe:
    """Up until `fall` answers in a row were bad; down until `rise` in a row were good."""

    rise: int = RISE
    fall: int = FALL
    up: bool = True
    _against: int = 0  # answers in a row that say that it is otherwise

    def record_answer(self, *, well: bool) -> bool:
        """Take in one answer, or that there was none; answers whether it is up."""
        self._against = 0 if well is self.up else self._against + 1
        if self._against >= (self.fall if self.up else self.rise):
            self.up, self._against = well, 0
        return self.up
