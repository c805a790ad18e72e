"""What one forward pass runs and samples, as numbers on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.attention.paged import Span


class RowSampling(NamedTuple):
    """How one token is drawn; temperature 0 takes the most likely. `key` seeds its noise.

    `instead` is drawn if no token is left to draw.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    key: tuple[int, int]
    instead: int = 0


class LogitChanges(NamedTuple):
    """Changes to some rows of logits before tokens are drawn: masks, then lists.

    The `masked` rows [m] int32 keep the tokens that `bits` [m, words] int32 allow: token t is
    bit t % 32 of word t // 32. The lists are described in
    engine/kernels/gpu/sampling/adjusting.py.
    """

    masked: NDArray[np.int32]
    bits: NDArray[np.int32]
    headers: NDArray[np.int32]  # [n, 4]
    factors: NDArray[np.float32]  # [n, 3]
    tokens: NDArray[np.int32]
    values: NDArray[np.float32]


class LogprobRequest(NamedTuple):
    """A row whose token's log-probability is requested, and those of the `most` likeliest."""

    row: int
    most: int


class SamplingPlan(NamedTuple):
    """How a token is drawn from each row of logits, and which log-probabilities to return.

    Log-probabilities are the model's, before `changes` are made to the logits.
    """

    draws: Sequence[RowSampling]
    changes: LogitChanges | None = None
    logprob_requests: Sequence[LogprobRequest] = ()


class BlockCopies(NamedTuple):
    """Copies of whole blocks, from one to another, before a forward pass and behind it."""

    before: Sequence[tuple[int, int]] = ()
    behind: Sequence[tuple[int, int]] = ()


class Plan(NamedTuple):
    """`singles` of one token each, then `chunks`; all `tokens` are concatenated in this order.

    `picks` are the rows, ascending, behind which a token is to be drawn: by the runner if
    `sampling` is set, else later or by the Sampler. A row's entry in `sources` is the row of
    the last draw whose token it computes, or -1 for the one in `tokens`. The changes of
    `sampling` were made without the tokens of `sources`, and penalties must count those too.
    States are copied as `copies` says.
    """

    tokens: Sequence[int]
    singles: Sequence[Span]
    chunks: Sequence[Span]
    picks: Sequence[int]
    sampling: SamplingPlan | None = None
    sources: Sequence[int] = ()
    copies: BlockCopies = BlockCopies()

    @property
    def has_adapters(self) -> bool:
        """Whether any sequence has a LoRA adapter."""
        return any(span.adapter is not None for span in (*self.singles, *self.chunks))

    @property
    def picks_all(self) -> bool:
        """Whether a token is drawn behind each row."""
        return len(self.picks) == len(self.tokens)
