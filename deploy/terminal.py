"""Whether the terminal that somebody started this from is still there."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

STANDARD = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Terminal:
    """The standard files that were a terminal's at the start; there may have been none."""

    files: Sequence[int]

    @classmethod
    def find(cls, files: Sequence[int] = STANDARD) -> "Terminal":
        """As it is now."""
        return cls([one for one in files if os.isatty(one)])

    @property
    def gone(self) -> bool:
        """Whether it was hung up since: then it is a terminal no longer."""
        return any(not os.isatty(one) for one in self.files)
