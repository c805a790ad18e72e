"""Penalties on logits on a device, for tokens of which the last may be known there alone."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from torch import Tensor

from engine.attention.plan import Penalties
from engine.kernels.uploading import Part, uploaded


class Adjust(Protocol):
    """As the kernel has it (engine/kernels/gpu/sampling/adjusting.py)."""

    def __call__(
        self,
        logits: Tensor,
        headers: Tensor,
        factors: Tensor,
        tokens: Tensor,
        values: Tensor,
        latest: Tensor | None = None,
    ) -> None:
        """Change some rows of `logits` [rows, vocabulary] float32 in place."""


def penalise(
    adjust: Adjust, logits: Tensor, asked: Sequence[Penalties], latest: Tensor
) -> None:
    """Change the rows that ask for it, in place.

    `latest` [rows] has the token that a row's answer has beside, or -1.
    """
    ends = [0, *accumulate(len(one.ids) for one in asked)]
    headers = [(one.row, ends[at], ends[at], ends[at + 1]) for at, one in enumerate(asked)]
    parts: list[Part] = [
        np.array(headers, np.int32),
        np.array([(one.repetition, one.frequency, one.presence) for one in asked], np.float32),
        np.concatenate([one.ids for one in asked]).astype(np.int32),
        np.concatenate([one.counts for one in asked]).astype(np.float32),
    ]
    there = uploaded(parts, logits.device)
    adjust(logits, there[0].view(-1, 4), there[1].view(-1, 3), there[2], there[3], latest)
