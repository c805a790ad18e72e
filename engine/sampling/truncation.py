"""Which of a row's tokens are left to sample from: min-p, then top-k, then top-p.

Tokens that tie with the last one kept are kept too, so that the result does not depend on the
order of a sort. Sorting a vocabulary is most of the work, and mostly few tokens are kept, so
the most likely tokens are examined first, and more only in rows that need it.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.request import Sampling

PREFIX, LONGER = 128, 4096
WORTH_IT = 4  # if the vocabulary is more than this many times larger


class Kept(NamedTuple):
    """Some truncated rows: `logits` of tokens that are not kept are minus infinity.

    `ids` [rows, n] are their tokens.
    """

    rows: list[int]
    ids: Tensor
    logits: Tensor


def truncates(sampling: Sampling) -> bool:
    """Whether the request truncates at all."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def truncate(logits: Tensor, samplings: Seq[Sampling]) -> Iterator[Kept]:
    """Truncate `logits` [rows, vocabulary] float32; yields each row once.

    How a row is computed depends on that row alone.
    """
    vocabulary = logits.shape[1]
    length = PREFIX if vocabulary > PREFIX * WORTH_IT else vocabulary
    ranked, ids = logits.topk(length)
    floors = _floors(logits, ranked, samplings)
    higher = ((floors > ranked[:, -1:])[:, 0] & (length < vocabulary)).tolist()
    inside = [
        above and _is_known(sampling, length, vocabulary)
        for above, sampling in zip(higher, samplings, strict=True)
    ]
    if few := [row for row, within in enumerate(inside) if within]:
        kept = ranked[few].masked_fill(ranked[few] < floors[few], -torch.inf)
        yield Kept(few, ids[few], kept)
    for row, within in enumerate(inside):  # one by one, so that a row stays in the cache
        if not within:
            part, floor = logits[row : row + 1], floors[row : row + 1]
            if not _is_exact(samplings[row], length, vocabulary):
                floor = _exact_floor(part, samplings[row])
            left = (part < floor).logical_not_().nonzero()[:, 1:].T
            yield Kept([row], left, part.gather(1, left))


def _exact_floor(row: Tensor, sampling: Sampling) -> Tensor:
    """[1, 1]: the smallest logit kept of [1, vocabulary]; mostly among the LONGER likeliest."""
    if row.shape[1] > LONGER * WORTH_IT:
        ranked = _ranked(row, LONGER)
        floor = _floors(row, ranked, [sampling])
        known = _is_known(sampling, LONGER, row.shape[1])
        if known and (floor > ranked[:, -1:]).item():
            return floor
    return _floors(row, _ranked(row, row.shape[1]), [sampling])


def _is_exact(sampling: Sampling, length: int, vocabulary: int) -> bool:
    """Whether the largest `length` logits determine the floor in any case."""
    known = _is_known(sampling, length, vocabulary)
    return length == vocabulary or (sampling.top_p >= 1 and known)


def _is_known(sampling: Sampling, length: int, vocabulary: int) -> bool:
    """Whether the largest `length` logits tell what top-k keeps: top-p needs all of it."""
    return sampling.top_k <= length or sampling.top_k >= vocabulary


def _ranked(logits: Tensor, count: int) -> Tensor:
    """The `count` largest of each row, best first; by numpy, in a twentieth of torch's time."""
    worst_first, rest = logits.cpu().numpy(), logits.shape[1] - count
    if rest:
        worst_first = np.partition(worst_first, rest, axis=1)[:, rest:]
    return torch.from_numpy(-np.sort(-worst_first, axis=1)).to(logits.device)


def _floors(logits: Tensor, ranked: Tensor, samplings: Seq[Sampling]) -> Tensor:
    """[rows, 1]: the smallest logit kept; exact if it is above the last of `ranked`, and what
    top-k keeps is known.

    `ranked` [rows, n] are the largest of each row, best first.
    """

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    best, length = ranked[:, :1], ranked.shape[1]
    floors = best + column([one.min_p for one in samplings]).log()
    if any(one.top_k for one in samplings):
        most = [min(one.top_k or length, length) for one in samplings]
        kth = ranked.gather(1, torch.tensor(most, device=logits.device).unsqueeze(1) - 1)
        bounds = [0 < one.top_k < logits.shape[1] for one in samplings]
        bounded = torch.tensor(bounds, device=logits.device)
        floors = torch.where(bounded.unsqueeze(1), floors.maximum(kth), floors)
    if all(one.top_p >= 1 for one in samplings):
        return floors
    mass = column([one.top_p for one in samplings])
    return torch.where(mass < 1, floors.maximum(_nucleus(logits, ranked, floors, mass)), floors)


def _nucleus(logits: Tensor, ranked: Tensor, floors: Tensor, mass: Tensor) -> Tensor:
    """[rows, 1]: the last of the smallest set with at least `mass` of what `floors` keep."""
    rows = zip(logits.split(1), floors.split(1), strict=True)
    first = torch.cat([_share_of_best(row, floor) for row, floor in rows])
    probabilities = (ranked - ranked[:, :1]).exp_() * first
    before = probabilities.cumsum(1) - probabilities  # the mass of higher-ranked tokens
    count = (before < mass).sum(1, keepdim=True).clamp(min=1)
    return ranked.gather(1, count - 1)


def _share_of_best(row: Tensor, floor: Tensor) -> Tensor:
    """[1, 1]: the likeliest token's probability among those that `floor` [1, 1] keeps.

    For one row [1, vocabulary], which stays in the cache.
    """
    if floor.item() > -torch.inf:
        row = row.masked_fill(row < floor, -torch.inf)
    return row.softmax(1).amax(1, keepdim=True)
