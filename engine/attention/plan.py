"""What one forward pass runs and samples, as numbers on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.attention.paged import Span


class RowSampling(NamedTuple):
    """How one token is drawn; temperature 0 takes the likeliest. `key` names its noise.

    `instead` comes where nothing is left to draw.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    key: tuple[int, int]
    instead: int = 0


class LogitChanges(NamedTuple):
    """What is done to some rows of logits before tokens are drawn: masks, then lists.

    `masked` rows [m] int32 keep what `bits` [m, words] int32 allow: token t is bit t % 32 of
    word t // 32. What the lists say is told by engine/kernels/gpu/sampling/adjusting.py.
    """

    masked: NDArray[np.int32]
    bits: NDArray[np.int32]
    headers: NDArray[np.int32]  # [n, 4]
    factors: NDArray[np.float32]  # [n, 3]
    tokens: NDArray[np.int32]
    values: NDArray[np.float32]


class LogprobRequest(NamedTuple):
    """A row whose token's log-probability is wanted, and those of the `most` likeliest."""

    row: int
    most: int


class SamplingPlan(NamedTuple):
    """How a token is drawn from each of some rows of logits, and which log-probabilities to
    return: those of the model, before `changes` are made to the logits.
    """

    draws: Sequence[RowSampling]
    changes: LogitChanges | None = None
    logprob_requests: Sequence[LogprobRequest] = ()


class Plan(NamedTuple):
    """`singles` of one token each, then `chunks`, whose tokens lie behind one another.

    `picks` are the rows, ascending, behind which a token is to be drawn: by whoever runs the
    plan where it says how, in `sampling`, else later or by others. Where `sources` names a row
    of those that were drawn last, and not -1, the token is what was drawn there; the changes
    of `sampling` do not know it, and penalties are to count it.
    """

    tokens: Sequence[int]
    singles: Sequence[Span]
    chunks: Sequence[Span]
    picks: Sequence[int]
    sampling: SamplingPlan | None = None
    sources: Sequence[int] = ()

    @property
    def picks_all(self) -> bool:
        """Whether a token is drawn behind each row."""
        return len(self.picks) == len(self.tokens)
