"""The layout of sampled tokens' log-probabilities, ranks and most likely alternatives.

All of it is one flat int32 tensor, so that a single copy brings it to the host.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

MOST_TOP_LOGPROBS = 32  # per row, as they are found one by one; a power of two


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """For n rows: [n] log-probabilities float32 and [n] ranks int32 of the chosen tokens; and
    [n, most] ids int32 and log-probabilities float32 of the most likely tokens, best first.
    """

    chosen: Tensor
    ranks: Tensor
    tokens: Tensor
    logprobs: Tensor


class GatherLogprobs(Protocol):
    """The kernel's signature (engine/kernels/gpu/sampling/token_logprobs.py)."""

    def __call__(
        self, logits: Tensor, rows: Tensor, chosen: Tensor, told: TokenLogprobs
    ) -> None:
        """Fill `told` for some `rows` [n] int32 of `logits` [.., vocabulary] float32.

        `chosen` [n] are these rows' tokens, of any integer type.
        """


def logprobs_size(rows: int, most: int) -> int:
    """The size in int32 of the log-probabilities of `rows`, with the `most` likeliest each."""
    return rows * (2 + 2 * most)


def logprobs_views(room: Tensor, rows: int, most: int) -> TokenLogprobs:
    """The parts of `room` [logprobs_size(rows, most)] int32, as views."""
    ends = [rows, 2 * rows, (2 + most) * rows]
    chosen, ranks, tokens, logprobs = room.tensor_split(ends)
    wide = (rows, most)
    return TokenLogprobs(
        chosen.view(torch.float32),
        ranks,
        tokens.view(wide),
        logprobs.view(torch.float32).view(wide),
    )
