"""What one forward pass is to run, in numbers of the host."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.attention.paged import Span


class DrawNumbers(NamedTuple):
    """How one token is drawn; temperature 0 takes the likeliest. `key` names its noise."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    key: tuple[int, int]


class Penalties(NamedTuple):
    """What the tokens that were there before are to count in one row of logits.

    `ids` are they, each once, and `counts` how often the answer has each.
    """

    row: int
    ids: NDArray[np.int64]
    counts: NDArray[np.float32]
    repetition: float
    frequency: float
    presence: float


class Ask(NamedTuple):
    """A row whose token's log-probability is to be told, and those of the `most` likeliest."""

    row: int
    most: int


class Plan(NamedTuple):
    """`singles` of one token each, then `chunks`, whose tokens lie behind one another.

    `picks` are the rows, ascending, behind which a token is to be drawn: by whoever runs the
    plan where there are `draws`, one for each. Where `sources` names a row of those that were
    drawn last, and not -1, the token is what was drawn there. Logits of rows that have
    `penalties` are changed before anything is drawn; these know no token of `sources`. Of rows
    in `asks` it is told how likely the model found what was drawn.
    """

    tokens: Sequence[int]
    singles: Sequence[Span]
    chunks: Sequence[Span]
    picks: Sequence[int]
    draws: Sequence[DrawNumbers] = ()
    sources: Sequence[int] = ()
    penalties: Sequence[Penalties] = ()
    asks: Sequence[Ask] = ()

    @property
    def picks_all(self) -> bool:
        """Whether a token is drawn behind each row."""
        return len(self.picks) == len(self.tokens)
