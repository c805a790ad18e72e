"""Flat rows, of which many tokens are left, are searched by many programs."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from engine.kernels.gpu.sampling.choosing import Sizes
from engine.kernels.gpu.sampling.spreading import settle
from engine.kernels.searching import Search, search_for
from engine.request import Sampling
from tests.kernels.sampling_cases import TINY, anything, by_torch, ours

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy


@pytest.mark.parametrize(
    ("turn", "asked"),
    list(
        enumerate(
            [
                Sampling(top_p=0.97),
                Sampling(top_k=150),
                Sampling(min_p=0.02, top_k=200, top_p=0.9),
                Sampling(min_p=1e-6),
                Sampling(top_p=0.5, min_p=0.9),
            ]
        )
    ),
)
def test_a_flat_row_is_searched_from_memory(
    turn: int, asked: Sampling, device: torch.device
) -> None:
    logits = torch.rand(2, 333, generator=torch.Generator().manual_seed(1)).to(device) * 2 - 1
    found, _ = ours(logits, [asked] * 2, TINY[turn % 2], range(2))
    assert found == by_torch(logits, [asked] * 2, range(2))


@pytest.fixture
def handed_on() -> Iterator[list[Tensor]]:
    """What is known of rows before the last launch, which then finds no logits any more."""
    seen = list[Tensor]()

    def spoil(logits: Tensor, *others: Any, **_: Any) -> None:  # noqa: ANN401
        seen.append(others[5].clone())
        logits.fill_(torch.nan)

    settle.add_pre_run_hook(spoil)
    yield seen
    settle.pre_run_hooks.remove(spoil)


@pytest.mark.parametrize(
    ("asked", "scale", "step"),
    [
        (Sampling(top_p=0.97), 1.0, 0.0),
        (Sampling(top_p=0.6, temperature=40), 3.0, 0.0),
        (Sampling(top_p=0.9, min_p=0.1), 1.0, 0.0),
        (Sampling(top_p=0.9), 1.0, 0.25),  # hundreds tie with the last one that is kept
        (Sampling(top_k=900), 1.0, 0.0),
        (Sampling(top_k=700, min_p=0.01), 1.0, 0.5),
        (Sampling(min_p=0.005), 1.0, 0.0),
    ],
)
def test_a_flat_row_is_searched_by_many_programs(
    asked: Sampling, scale: float, step: float, handed_on: list[Tensor], device: torch.device
) -> None:
    """None of them is left to the last program, which would have to read it again."""
    logits = scale * torch.randn(2, 2500, generator=torch.Generator().manual_seed(3))
    logits = (logits / step).round() * step if step else logits
    logits[:, 2490:] = -torch.inf
    sizes = Sizes(512, 16, 16, capacity=64, chunk=256, slice=512, step=64)
    wanted = by_torch(logits, [asked] * 2, range(2))
    found, _ = ours(logits.to(device), [asked] * 2, sizes, range(2))
    assert found == wanted
    assert {int(kind) for work in handed_on for kind in work[:, 0]} <= {1, 2, 3}


@pytest.mark.parametrize("asked", [Sampling(top_k=40), Sampling(top_p=0.4)])
def test_the_last_of_those_between_two_pivots_is_told_exactly(
    asked: Sampling, handed_on: list[Tensor], device: torch.device
) -> None:
    """Twenty tokens, and far below them eighty, of which most lie in one interval."""
    logits = torch.rand(16, 100, generator=torch.Generator().manual_seed(5)) * 1e-3
    logits[:, ::5] *= 3e5
    logits[:, ::5] += 500
    asked = replace(asked, temperature=1e4)
    wanted = by_torch(logits, [asked] * 16, range(16))
    sizes = Sizes(64, 2, 2, capacity=128, chunk=64, slice=128, step=64)
    logits = logits.to(device)
    assert ours(logits, [asked] * 16, sizes, range(16), Search.ANYWHERE)[0] == wanted
    (work,) = handed_on
    assert int(work[:, 4].min()) > 40


@pytest.mark.parametrize("seed", range(4))
def test_one_program_finds_the_same_alone(seed: int, device: torch.device) -> None:
    chance, logits = random.Random(seed), torch.randn(3, 333, device=device)
    asked = [replace(anything(chance, 333), top_k=300, temperature=1.5) for _ in range(3)]
    alone, _ = ours(logits, asked, TINY[0], range(3), Search.LIKELIEST)
    assert alone == ours(logits, asked, TINY[0], range(3))[0]
    assert alone == by_torch(logits, asked, range(3))


def test_what_is_launched_follows_from_what_is_asked() -> None:
    greedy, plain, few, many = (0, 50, 0.5, 0), (1, 0, 1, 0), (1, 256, 0.5, 0.1), (1, 257, 1, 0)
    assert search_for([]) is search_for([greedy, plain]) is Search.NONE
    assert search_for([greedy, few]) is Search.LIKELIEST
    for one in many, (0.1, 0, 0.999, 0), (1, 0, 1, 0.01):
        assert search_for([few, one, plain]) is Search.ANYWHERE
