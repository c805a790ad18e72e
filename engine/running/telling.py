"""Log-probabilities of tokens that were drawn on a device, for rows that want to be told."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.attention.plan import Ask
from engine.kernels.token_logprobs import GatherLogprobs, logprobs_size, logprobs_views
from engine.kernels.uploading import uploaded


class Asking(NamedTuple):
    """Rows `places` [n] int32 of `logits` as the model gave them: `rows` of a batch."""

    logits: Tensor
    places: Tensor
    rows: Tensor
    most: int


def asking(logits: Tensor, asks: Sequence[Ask], *, changing: bool) -> Asking:
    """What is needed of `logits`, which may be `changing` before anything is drawn."""
    (rows,) = uploaded([np.array([one.row for one in asks], np.int32)], logits.device)
    most = max(one.most for one in asks)
    if not changing:
        return Asking(logits, rows, rows, most)
    places = torch.arange(len(asks), dtype=torch.int32, device=logits.device)
    return Asking(logits.index_select(0, rows), places, rows, most)


def told_of(tell: GatherLogprobs, ask: Asking, drawn: Tensor) -> Tensor:
    """[numbers] int32 for engine/kernels/token_logprobs.py:logprobs_views; nobody waits.

    `drawn` [rows] has a token for each row of the batch.
    """
    count = len(ask.rows)
    room = torch.empty(logprobs_size(count, ask.most), dtype=torch.int32, device=drawn.device)
    chosen = drawn.index_select(0, ask.rows)
    tell(ask.logits, ask.places, chosen, logprobs_views(room, count, ask.most))
    return room
