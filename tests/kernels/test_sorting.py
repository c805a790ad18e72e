"""Choices are sorted as by a stable sort; answers are added as they were weighed."""

import pytest
import torch

from engine.kernels.gpu.sorting import (
    CHUNK,
    combine,
    combine_floor,
    sort_by_expert,
    sort_floor,
)
from engine.kernels.products import TorchProducts
from tests.kernels.attention_cases import FLOATS

REAL = pytest.mark.gpu


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts"),
    [
        *((1, 1, 1), (1, 8, 13), (37, 3, 5), (7, 2, 60), (520, 2, 3)),
        *(pytest.param(tokens, 8, 128, marks=REAL) for tokens in (1, 64, 8192)),
    ],
)
def test_a_sort_is_stable_and_complete(
    tokens: int, top_k: int, experts: int, device: torch.device
) -> None:
    assert tokens < 500 or tokens * top_k > CHUNK
    chosen = torch.rand(tokens, experts, device=device).topk(min(top_k, experts)).indices
    chosen = chosen if top_k <= experts else chosen.repeat(1, top_k)
    ids = chosen.flatten()
    counts = torch.bincount(ids, minlength=experts)
    expected = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    for sort in (sort_by_expert, TorchProducts().sort):
        order, offsets = sort(chosen, experts)
        assert torch.equal(order.long(), ids.argsort(stable=True))
        assert torch.equal(offsets.long(), expected)
        assert order.dtype is offsets.dtype is torch.int32


@pytest.mark.parametrize("only", [0, 3])
def test_one_expert_may_have_all(only: int, device: torch.device) -> None:
    order, offsets = sort_by_expert(torch.full((9, 1), only, device=device), 4)
    assert order.tolist() == list(range(9))
    assert offsets.tolist() == [0] * (only + 1) + [9] * (4 - only)


SUMMED = [
    *((0, 2, 8), (3, 1, 5), (4, 8, 1030)),
    *(pytest.param(tokens, 8, 2048, marks=REAL) for tokens in (1, 64, 8192)),
]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("tokens", "top_k", "size"), SUMMED)
def test_answers_are_weighed_and_added(
    tokens: int, top_k: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    answers = torch.randn(tokens, top_k, size, device=device).to(dtype)
    weights = torch.rand(tokens, top_k, device=device)
    exact = (answers.double() * weights.double().unsqueeze(-1)).sum(1)
    close = 1e-6 if dtype is torch.float32 else 1e-2
    for mixed in (combine(answers, weights), TorchProducts().combine(answers, weights)):
        assert mixed.dtype is dtype
        torch.testing.assert_close(mixed.double(), exact, rtol=close, atol=close)


def test_floors_count_each_number_once() -> None:
    assert sort_floor(torch.zeros(64, 8, dtype=torch.int64)).bytes == 64 * 8 * (8 + 4)
    floor = combine_floor(torch.zeros(64, 8, 2048, dtype=torch.bfloat16))
    assert floor.bytes == 9 * 64 * 2048 * 2 + 64 * 8 * 4
    assert floor.operations == 2 * 64 * 8 * 2048
