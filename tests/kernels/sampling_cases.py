"""Rows of logits, drawn from by the kernels and by the sampler's torch path."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.kernels.gpu.sampling.choosing import Sizes, choose
from engine.kernels.searching import Search, search_for
from engine.request import Sampling
from engine.sampling.noise import noise_key
from engine.sampling.sampler import Sampler
from tests.fakes.sampling import draw_at

TINY = (
    Sizes(64, 8, 4, capacity=16, chunk=128, slice=64, step=32),  # mostly from memory
    Sizes(64, 8, 16, capacity=64, chunk=128, slice=128, step=64),
    Sizes(128, 16, 8, capacity=128, chunk=64, slice=256, step=128),
)


def ours(
    logits: Tensor,
    asked: Sequence[Sampling],
    sizes: Sizes,
    positions: Sequence[int],
    search: Search | None = None,
) -> tuple[list[int], list[bool]]:
    """Tokens, and whether there was anything to choose from."""
    device = logits.device

    def column(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    pairs = zip(asked, positions, strict=True)
    names = [noise_key(one.seed, one.sample_index, at) for one, at in pairs]
    out = torch.full((len(asked),), -9, device=device)
    alive = torch.full_like(out, -9)
    tokens = choose(
        logits,
        column([one.temperature for one in asked]),
        column([one.top_k for one in asked], torch.int32),
        column([one.top_p for one in asked]),
        column([one.min_p for one in asked]),
        torch.tensor(names, device=device).view(-1, 2),
        out=out,
        alive=alive,
        sizes=sizes,
        search=_search(asked) if search is None else search,
    )
    assert tokens is out
    assert set(alive.tolist()) <= {0, 1}
    return tokens.tolist(), [bool(one) for one in alive.tolist()]


def _search(asked: Sequence[Sampling]) -> Search:
    return search_for((one.temperature, one.top_k, one.top_p, one.min_p) for one in asked)


def by_torch(logits: Tensor, asked: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    draws = [draw_at(one, at) for one, at in zip(asked, positions, strict=True)]
    return Sampler(logits.shape[1]).sample(logits.cpu().clone(), draws).tokens


def anything(chance: random.Random, vocabulary: int) -> Sampling:
    return Sampling(
        temperature=chance.choice([0, 0.3, 1, 2.0]),
        top_k=chance.choice([0, 0, 1, 3, 20, vocabulary, vocabulary + 5]),
        top_p=chance.choice([1, 1, 1e-9, 0.01, 0.5, 0.9, 0.999]),
        min_p=chance.choice([0, 0, 0.01, 0.3, 1]),
        seed=chance.randrange(2**64),
    )
