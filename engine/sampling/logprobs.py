"""How likely the model found a token, and which it found likelier.

All of it is of the model's logits as they are, before anything that was asked changes them.
A rank is 1 and how many are strictly likelier; tokens that tie come in the order of their ids.
"""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from engine.request import Logprob, Logprobs

LEAST_LOGPROB = -9999.0  # instead of minus infinity, which no JSON can carry


def logprobs_of(logits: Tensor) -> Tensor:
    """[rows, vocabulary] float32 both; a row's does not depend on the others."""
    return logits.log_softmax(1)


def tell(logprobs: Tensor, tokens: Seq[int], most: int) -> list[Logprobs]:
    """For each row of `logprobs` its token first, then the `most` likeliest, best first.

    The token itself is told again among these if it is one of them. -1 tells all.
    """
    chosen = torch.tensor(tokens, device=logprobs.device).unsqueeze(1)
    found = logprobs.gather(1, chosen)
    ranks = (logprobs > found).sum(1, keepdim=True) + 1
    if most:
        best = _best(logprobs, logprobs.shape[1] if most < 0 else most)
        values = logprobs.gather(1, best)
        ranks = torch.cat([ranks, _ranks(values)], dim=1)
        chosen, found = torch.cat([chosen, best], dim=1), torch.cat([found, values], dim=1)
    told = (chosen.tolist(), found.clamp_(min=LEAST_LOGPROB).tolist(), ranks.tolist())
    return [tuple(map(Logprob, *row)) for row in zip(*told, strict=True)]


def _best(logprobs: Tensor, most: int) -> Tensor:
    """[rows, most] token ids, best first, the smaller id first where they tie."""
    if most >= logprobs.shape[1]:
        return logprobs.sort(dim=1, descending=True, stable=True).indices
    values, ids = logprobs.topk(most + 1)
    tied = (values[:, 1:] == values[:, :-1]).any(1)
    for row in torch.nonzero(tied)[:, 0].tolist():
        found = torch.nonzero(logprobs[row] >= values[row, most - 1])[:, 0]
        order = logprobs[row, found].sort(descending=True, stable=True).indices
        ids[row, :most] = found[order[:most]]
    return ids[:, :most]


def _ranks(values: Tensor) -> Tensor:
    """Of each row's best, which are sorted: where the first of its equals stands."""
    places = torch.arange(1, values.shape[1] + 1, device=values.device).expand_as(values)
    equal = torch.zeros_like(values, dtype=torch.bool)
    equal[:, 1:] = values[:, 1:] == values[:, :-1]
    return places.masked_fill(equal, 1).cummax(1).values
