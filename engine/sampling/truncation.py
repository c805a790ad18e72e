"""Which of a row's tokens are left to draw from: min-p, then top-k, then top-p.

Tokens that tie with the last one kept are kept too: which of them counts must not depend on
a sort. Sorting a vocabulary is most of the work, and what is kept is mostly few: so the
likeliest are looked at first, more where that leaves a doubt, and all where it still does.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from engine.request import Sampling

PREFIXES = 128, 2048
WORTH_IT = 4  # a prefix, where the vocabulary is so many times larger


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
    vocabulary, rows = logits.shape[1], list(range(len(samplings)))
    for length in (*(one for one in PREFIXES if WORTH_IT * one < vocabulary), vocabulary):
        part = logits if len(rows) == len(logits) else logits[rows]
        asked = [samplings[row] for row in rows]
        ranked, ids = part.topk(length)
        floors = _floors(part, ranked, asked)
        inside = (floors > ranked[:, -1:])[:, 0].tolist()
        few = [i for i, within in enumerate(inside) if within and length < vocabulary]
        if few:
            kept = ranked[few].masked_fill(ranked[few] < floors[few], -torch.inf)
            yield Kept([rows[i] for i in few], ids[few], kept)
        many = [
            i
            for i, (one, within) in enumerate(zip(asked, inside, strict=True))
            if length == vocabulary or (not within and _is_exact(one, length))
        ]
        if many:
            kept = part[many].masked_fill(part[many] < floors[many], -torch.inf)
            yield Kept([rows[i] for i in many], None, kept)
        done = {*few, *many}
        rows = [row for i, row in enumerate(rows) if i not in done]
        if not rows:
            return


def _is_exact(sampling: Sampling, length: int) -> bool:
    """Whether the largest `length` logits tell the floor, wherever it is."""
    return sampling.top_p >= 1 and sampling.top_k <= length


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
