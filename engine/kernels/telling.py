"""What is told of tokens that were drawn: log-probabilities, ranks, and the likeliest beside.

All of it is one stretch of whole numbers of four bytes, so that one copy brings it to the host.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

MOST_TOLD = 32  # of the likeliest, which are taken one by one; a power of two


@dataclass(frozen=True, slots=True)
class Told:
    """[n] log-probabilities float32 of what was chosen, and ranks int32; [n, most] of the
    likeliest, best first.
    """

    chosen: Tensor
    ranks: Tensor
    tokens: Tensor
    logprobs: Tensor


class Tell(Protocol):
    """As the kernel has it (engine/kernels/gpu/sampling/telling.py)."""

    def __call__(self, logits: Tensor, rows: Tensor, chosen: Tensor, told: Told) -> None:
        """Fill `told` for some `rows` [n] int32 of `logits` [.., vocabulary] float32.

        `chosen` [n] are their tokens, of any integer type.
        """


def told_numbers(rows: int, most: int) -> int:
    """How many numbers it takes."""
    return rows * (2 + 2 * most)


def told_into(room: Tensor, rows: int, most: int) -> Told:
    """Views of `room` [told_numbers(rows, most)] int32, where there is one already."""
    ends = [rows, 2 * rows, (2 + most) * rows]
    chosen, ranks, tokens, logprobs = room.tensor_split(ends)
    wide = (rows, most)
    return Told(
        chosen.view(torch.float32),
        ranks,
        tokens.view(wide),
        logprobs.view(torch.float32).view(wide),
    )
