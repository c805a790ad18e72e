"""What one forward pass is to run, in numbers of the host."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.attention.paged import Span


class Plan(NamedTuple):
    """`singles` of one token each, then `chunks`, whose tokens lie behind one another.

    `picks` are the rows, ascending, behind which a token is to be drawn.
    """

    tokens: Sequence[int]
    singles: Sequence[Span]
    chunks: Sequence[Span]
    picks: Sequence[int]

    @property
    def picks_all(self) -> bool:
        """Whether a token is drawn behind each row."""
        return len(self.picks) == len(self.tokens)
