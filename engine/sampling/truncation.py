"""Which of a row's tokens are left to draw from: min-p, then top-k, then top-p.

Tokens that tie with the last one kept are kept too: which of them counts must not depend on
a sort. Sorting is most of the work, and what is kept is mostly few: the PREFIX likeliest are
looked at first, and all only in those rows where that leaves a doubt.
"""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from engine.request import Sampling

PREFIX = 1024


def truncates(sampling: Sampling) -> bool:
    """Whether anything is cut at all."""
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def truncate(logits: Tensor, samplings: Seq[Sampling]) -> None:
    """Ban in place what is cut from each row of `logits` [rows, vocabulary] float32."""
    floors = _floors(logits, _likeliest(logits, samplings), samplings)
    if logits.shape[1] > PREFIX:
        _look_further(logits, floors, samplings)
    logits.masked_fill_(logits < floors, -torch.inf)


def _likeliest(logits: Tensor, samplings: Seq[Sampling]) -> Tensor:
    """[rows, n]: so many of each row as are mostly enough, best first."""
    if not any(one.top_k or one.top_p < 1 for one in samplings):
        return logits.amax(1, keepdim=True)
    return logits.topk(min(PREFIX, logits.shape[1])).values


def _look_further(logits: Tensor, floors: Tensor, samplings: Seq[Sampling]) -> None:
    """Find those floors anew that may lie below the prefix."""
    asking = [row for row, one in enumerate(samplings) if one.top_k > PREFIX or one.top_p < 1]
    if not asking:
        return
    kept = (logits[asking] >= floors[asking]).sum(1)
    doubtful = [
        row for row, count in zip(asking, kept.tolist(), strict=True) if count >= PREFIX
    ]
    if doubtful:
        whole = logits[doubtful]
        ranked = whole.sort(dim=1, descending=True).values
        floors[doubtful] = _floors(whole, ranked, [samplings[row] for row in doubtful])


def _floors(logits: Tensor, ranked: Tensor, samplings: Seq[Sampling]) -> Tensor:
    """[rows, 1]: the smallest logit kept, as far as `ranked` tells.

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
