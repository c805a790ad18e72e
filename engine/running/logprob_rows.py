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
    """Unmodified logits: row places[i] of `logits` is the batch's row rows[i]; [n] int32."""

    logits: Tensor
    places: Tensor
    rows: Tensor
    most: int


def gather_logprob_rows(
    logits: Tensor, asks: Sequence[LogprobRequest], *, changing: bool
) -> LogprobRows:
    """Collect the requested rows; copies them if `logits` are `changing` before sampling."""
    (rows,) = uploaded([np.array([one.row for one in asks], np.int32)], logits.device)
    most = max(one.most for one in asks)
    if not changing:
        return LogprobRows(logits, rows, rows, most)
    places = torch.arange(len(asks), dtype=torch.int32, device=logits.device)
    return LogprobRows(logits.index_select(0, rows), places, rows, most)


def launch_logprobs(tell: GatherLogprobs, ask: LogprobRows, drawn: Tensor) -> Tensor:
    """Launch the kernel; [numbers] int32 for engine/kernels/token_logprobs.py:logprobs_views.

    `drawn` [rows] has a token for each row of the batch. Does not wait for the device.
    """
    count = len(ask.rows)
    room = torch.empty(logprobs_size(count, ask.most), dtype=torch.int32, device=drawn.device)
    chosen = drawn.index_select(0, ask.rows)
    tell(ask.logits, ask.places, chosen, logprobs_views(room, count, ask.most))
    return room
