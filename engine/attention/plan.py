"""What one forward pass is to run, in numbers of the host."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.attention.paged import Span


class DrawNumbers(NamedTuple):
    """How one token is drawn; temperature 0 takes the likeliest. `key` names its noise."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    key: tuple[int, int]


class Plan(NamedTuple):
    """`singles` of one token each, then `chunks`, whose tokens lie behind one another.

    `picks` are the rows, ascending, behind which a token is to be drawn: by whoever runs the
    plan where there are `draws`, one for each. Where `sources` names a row of those that were
    drawn last, and not -1, the token is what was drawn there.
    """

    tokens: Sequence[int]
    singles: Sequence[Span]
    chunks: Sequence[Span]
    picks: Sequence[int]
    draws: Sequence[DrawNumbers] = ()
    sources: Sequence[int] = ()

    @property
    def picks_all(self) -> bool:
        """Whether a token is drawn behind each row."""
        return len(self.picks) == len(self.tokens)
