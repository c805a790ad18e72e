"""From logits to one token per row, vectorised over the batch.

In this order: end tokens held back by `min_tokens`, temperature, min-p, top-k, top-p, noise,
and the largest wins. Temperature 0 skips all but the first, and so does one so small that
logits over it would overflow. Tokens that tie with the last
one kept by top-k or top-p are kept too: which of them counts must not depend on a sort.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.request import LARGEST_TEMPERATURE, Sampling
from engine.sampling.noise import gumbel, noise_key

SMALLEST_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True)
class Draw:
    """One row to sample: `position` tokens precede it, `banned` may not be drawn yet."""

    sampling: Sampling
    position: int
    banned: tuple[int, ...] = ()


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row of `logits` [rows, vocabulary] float32, which it may change."""
    for row, draw in enumerate(draws):
        if draw.banned:
            logits[row, list(draw.banned)] = -torch.inf
    warm = [
        row
        for row, draw in enumerate(draws)
        if draw.sampling.temperature > SMALLEST_TEMPERATURE
    ]
    if not warm:
        return _tokens(logits)
    if len(warm) == len(draws):
        return _tokens(_perturbed(logits, draws))
    chosen = logits[warm]
    logits[warm] = _perturbed(chosen, [draws[row] for row in warm])
    return _tokens(logits)


def _perturbed(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    samplings, device = [draw.sampling for draw in draws], logits.device

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device).unsqueeze(1)

    logits = logits / column([min(one.temperature, LARGEST_TEMPERATURE) for one in samplings])
    if any(one.min_p > 0 for one in samplings):
        floor = column([one.min_p for one in samplings]).log()
        logits = _cut(logits, logits.amax(1, keepdim=True) + floor)
    if any(one.top_k or one.top_p < 1 for one in samplings):
        logits = _keep_top(logits, [one.top_k for one in samplings], samplings)
    keys = [noise_key(d.sampling.seed, d.sampling.sample_index, d.position) for d in draws]
    return logits + gumbel(torch.tensor(keys, device=device), logits.shape[1])


def _keep_top(logits: Tensor, top_k: Sequence[int], samplings: Sequence[Sampling]) -> Tensor:
    """Cut each row below its k-th largest, then below the smallest set that reaches top_p."""
    vocabulary, device = logits.shape[1], logits.device
    ranked = logits.sort(dim=1, descending=True).values
    most = torch.tensor([min(k or vocabulary, vocabulary) for k in top_k], device=device)
    kth = ranked.gather(1, most.unsqueeze(1) - 1)
    ranked = _cut(ranked, kth)
    logits = _cut(logits, kth)
    if all(one.top_p >= 1 for one in samplings):
        return logits
    mass = torch.tensor([one.top_p for one in samplings], device=device).unsqueeze(1)
    probabilities = ranked.softmax(1)
    before = probabilities.cumsum(1) - probabilities  # the mass of what ranks higher
    count = (before < mass).sum(1, keepdim=True).clamp(min=1)
    nucleus = ranked.gather(1, count - 1)
    return _cut(logits, torch.where(mass < 1, nucleus, -torch.inf))


def _cut(logits: Tensor, floor: Tensor) -> Tensor:
    return logits.masked_fill(logits < floor, -torch.inf)


def _tokens(logits: Tensor) -> list[int]:
    tokens: list[int] = logits.argmax(1).tolist()
    return tokens
