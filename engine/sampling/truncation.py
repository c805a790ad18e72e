"""Which of a row's tokens are left to draw from: min-p, then top-k, then top-p.

Tokens that tie with the last one kept are kept too: which of them counts must not depend on
a sort. Sorting a vocabulary is most of the work, and what is kept is mostly few: so the
likeliest are looked at first, and all only in those rows where that leaves a doubt.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.request import Sampling

PREFIX = 128
WORTH_IT = 4  # where the vocabulary is more than so many times larger


class Kept(NamedTuple):
    """Some rows and what is left of them: `logits` are minus infinity where they were cut.

    `ids` [rows, n] are their tokens; None: all of the vocabulary, in order.
    """

    rows: list[int]
    ids: Tensor | None
    logits: Tensor


def truncates(sampling: Sampling) -> bool:
    """Whether anything is cut at all."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def truncate(logits: Tensor, samplings: Seq[Sampling]) -> Iterator[Kept]:
    """Each row of `logits` [rows, vocabulary] float32 once; which way follows from it alone."""
    vocabulary = logits.shape[1]
    length = PREFIX if vocabulary > PREFIX * WORTH_IT else vocabulary
    ranked, ids = logits.topk(length)
    floors = _floors(logits, ranked, samplings)
    inside = ((floors > ranked[:, -1:])[:, 0] & (length < vocabulary)).tolist()
    if few := [row for row, within in enumerate(inside) if within]:
        kept = ranked[few].masked_fill(ranked[few] < floors[few], -torch.inf)
        yield Kept(few, ids[few], kept)
    many = [row for row, within in enumerate(inside) if not within]
    for row in many:  # singly: one row stays in the cache
        if not _is_exact(samplings[row], length, vocabulary):
            part = logits[row : row + 1]
            floors[row] = _floors(part, _sorted(part), samplings[row : row + 1])
    if many:
        yield Kept(
            many, None, logits[many].masked_fill(logits[many] < floors[many], -torch.inf)
        )


def _is_exact(sampling: Sampling, length: int, vocabulary: int) -> bool:
    """Whether the largest `length` logits tell the floor, wherever it is."""
    return length == vocabulary or (sampling.top_p >= 1 and sampling.top_k <= length)


def _sorted(logits: Tensor) -> Tensor:
    """Each row best first; on a CPU by numpy, which takes a twentieth of torch's time."""
    if logits.device.type != "cpu":
        return logits.sort(dim=1, descending=True).values
    return torch.from_numpy(np.sort(-logits.numpy(), axis=1)).neg_()


def _floors(logits: Tensor, ranked: Tensor, samplings: Seq[Sampling]) -> Tensor:
    """[rows, 1]: the smallest logit kept; exact where it is above the last of `ranked`.

    `ranked` [rows, n] are the largest of each row, best first.
    """

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    best, length = ranked[:, :1], ranked.shape[1]
    floors = best + column([one.min_p for one in samplings]).log()
    if any(one.top_k for one in samplings):
        most = [min(one.top_k or length, length) for one in samplings]
        kth = ranked.gather(1, torch.tensor(most, device=logits.device).unsqueeze(1) - 1)
        bounded = torch.tensor([one.top_k > 0 for one in samplings], device=logits.device)
        floors = torch.where(bounded.unsqueeze(1), floors.maximum(kth), floors)
    if all(one.top_p >= 1 for one in samplings):
        return floors
    mass = column([one.top_p for one in samplings])
    return torch.where(mass < 1, floors.maximum(_nucleus(logits, ranked, floors, mass)), floors)


def _nucleus(logits: Tensor, ranked: Tensor, floors: Tensor, mass: Tensor) -> Tensor:
    """[rows, 1]: the last of the smallest set that reaches `mass` of what `floors` leave."""
    first = logits.masked_fill(logits < floors, -torch.inf).softmax(1).amax(1, keepdim=True)
    probabilities = (ranked - ranked[:, :1]).exp_() * first
    before = probabilities.cumsum(1) - probabilities  # the mass of what ranks higher
    count = (before < mass).sum(1, keepdim=True).clamp(min=1)
    return ranked.gather(1, count - 1)
