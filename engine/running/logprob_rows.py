"""Log-probabilities of tokens sampled on a device, for the rows that ask for them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.attention.plan import LogprobRequest
from engine.kernels.token_logprobs import GatherLogprobs, logprobs_size, logprobs_views
from engine.kernels.uploading import uploaded


class LogprobRows(NamedTuple):
    """Unmodified logits: rows `places` [n] int32 of `logits` are `rows` [n] of the batch."""

    logits: Tensor
    places: Tensor
    rows: Tensor
    most: int


def gather_logprob_rows(
    logits: Tensor, asks: Sequence[LogprobRequest], *, changing: bool
) -> LogprobRows:
    """Find the rows that ask; copied if `logits` are `changing` before sampling."""
    (rows,) = uploaded([np.array([one.row for one in asks], np.int32)], logits.device)
    most = max(one.most for one in asks)
    if not changing:
        return LogprobRows(logits, rows, rows, most)
    places = torch.arange(len(asks), dtype=torch.int32, device=logits.device)
    return LogprobRows(logits.index_select(0, rows), places, rows, most)


def launch_logprobs(tell: GatherLogprobs, ask: LogprobRows, drawn: Tensor) -> Tensor:
    """[numbers] int32 for engine/kernels/token_logprobs.py:logprobs_views; nobody waits.

    `drawn` [rows] has a token for each row of the batch.
    """
    count = len(ask.rows)
    room = torch.empty(logprobs_size(count, ask.most), dtype=torch.int32, device=drawn.device)
    chosen = drawn.index_select(0, ask.rows)
    tell(ask.logits, ask.places, chosen, logprobs_views(room, count, ask.most))
    return room
