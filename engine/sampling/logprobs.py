"""Log-probabilities and ranks of tokens, in plain torch.

They are computed from the model's logits, before any logits processor, temperature or
truncation. A token's rank is 1 plus the number of strictly likelier tokens; ties are ordered by
token id.
"""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from engine.request import Logprob, Logprobs

LEAST_LOGPROB = -9999.0  # instead of minus infinity, which JSON does not have


def logprobs_of(logits: Tensor) -> Tensor:
    """Logits [rows, vocabulary] float32 to log-probabilities; each row on its own."""
    return logits.log_softmax(1)


def top_logprobs(logprobs: Tensor, tokens: Seq[int], most: int) -> list[Logprobs]:
    """For each row of `logprobs` its token first, then the `most` likeliest, best first.

    The token appears a second time if it is among the likeliest. `most` -1 means all tokens.
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
    """[rows, most] token ids, best first; of tokens that tie, the smaller id first."""
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
    """The ranks of each row's sorted `values`: equal ones have the rank of the first."""
    places = torch.arange(1, values.shape[1] + 1, device=values.device).expand_as(values)
    equal = torch.zeros_like(values, dtype=torch.bool)
    equal[:, 1:] = values[:, 1:] == values[:, :-1]
    return places.masked_fill(equal, 1).cummax(1).values
