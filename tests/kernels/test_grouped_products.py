"""Many experts in one launch say what each of them says alone."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.gpu.products import TritonProducts
from engine.kernels.gpu.tiles import most_tiles
from engine.kernels.products import Products, Route, TorchProducts
from engine.kernels.weights import Int4Weight, Weight
from tests.kernels.ahead import compiled
from tests.kernels.test_products import (
    CLOSE,
    FORMATS,
    REAL_ROWS,
    SHARED_BYTES,
    assert_close,
    exactly,
    made,
    numbers,
)

EVERYBODY = (TritonProducts(), TorchProducts())
COUNTS = {
    "a few each": [3, 1, 2, 5],
    "nobody at the ends": [0, 0, 7, 0, 17, 0],
    "one has all": [0, 35, 0],
    "more than a tile": [33, 16, 1],
    "the only one": [4],
    "many without any": [0] * 11 + [1] + [0] * 9 + [2],
}


def offsets_of(counts: list[int], device: torch.device) -> Tensor:
    ends = torch.tensor(counts).cumsum(0)
    return torch.cat((torch.zeros(1, dtype=torch.int64), ends)).to(device, torch.int32)


def exactly_by_token(rows: Tensor, chosen: Tensor, weight: Weight) -> Tensor:
    """[tokens * top_k, outputs] in float64, on the CPU: of each token what its experts say."""
    experts, outputs, _ = weight.shape
    exact = torch.full((*chosen.shape, outputs), torch.nan, dtype=torch.float64)
    for expert in range(experts):
        tokens, choices = (chosen == expert).nonzero(as_tuple=True)
        if len(tokens):
            exact[tokens.cpu(), choices.cpu()] = exactly(rows[tokens], weight, expert)
    return exact.flatten(0, 1)


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("products", EVERYBODY, ids=["triton", "torch"])
def test_each_expert_multiplies_its_own(
    products: Products, name: str, counts: list[int], device: torch.device
) -> None:
    experts, dtype = len(counts), torch.float32
    weight = made(name, numbers(experts, 35, 70, dtype=dtype, device=device))
    bias = numbers(experts, 35, dtype=dtype, device=device)
    given = numbers(sum(counts), 70, dtype=dtype, device=device)
    answer = products.grouped(given, Route(offsets_of(counts, device)), weight, bias)
    parts = [
        exactly(rows, weight, expert) + bias[expert].double().cpu()
        for expert, rows in enumerate(given.split(counts))
        if len(rows)
    ]
    assert_close(answer, torch.cat(parts), dtype)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("products", EVERYBODY, ids=["triton", "torch"])
def test_rows_are_fetched_and_put_back_by_place(
    products: Products, name: str, dtype: torch.dtype, device: torch.device
) -> None:
    """A token's row is read by each expert that it chose; answers lie by token."""
    tokens, top_k, experts = 6, 2, 5
    chosen = torch.rand(tokens, experts, device=device).topk(top_k).indices
    weight = made(name, numbers(experts, 33, 64, dtype=dtype, device=device))
    given = numbers(tokens, 64, dtype=dtype, device=device)
    order, offsets = products.sort(chosen, experts)
    route = Route(offsets, order, order, top_k)
    answer = products.grouped(given, route, weight, None)
    assert_close(answer, exactly_by_token(given, chosen, weight), dtype)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("products", EVERYBODY, ids=["triton", "torch"])
def test_rows_of_others_are_not_read_and_zero(
    products: Products, name: str, device: torch.device
) -> None:
    """Offsets of a part of all experts: what is before and behind is another rank's."""
    weight = made(name, numbers(2, 33, 64, dtype=torch.float32, device=device))
    given = numbers(10, 64, dtype=torch.float32, device=device)
    given[:3], given[8:] = torch.nan, torch.nan
    offsets = torch.tensor([3, 4, 8], dtype=torch.int32, device=device)
    answer = products.grouped(given, Route(offsets, partly=True), weight, None)
    assert_close(answer[3:4], exactly(given[3:4], weight, 0), torch.float32)
    assert_close(answer[4:8], exactly(given[4:8], weight, 1), torch.float32)
    assert not answer[:3].any()
    assert not answer[8:].any()


@pytest.mark.parametrize("name", FORMATS)
def test_the_last_expert_of_weights_that_lie_far_apart(name: str, device: torch.device) -> None:
    """An expert may begin beyond 2^31 numbers: its offset is not cut off to 32 bits."""
    experts = 3
    weight = made(name, numbers(experts, 16, 32, dtype=torch.float32, device=device))
    far: Weight
    values = weight.packed if isinstance(weight, Int4Weight) else weight.values
    apart = 2**30 + 64  # numbers from one expert to the next, hardly any of them touched
    room = torch.empty(2 * apart + values[0].numel(), dtype=values.dtype, device=device)
    spread = room.as_strided(values.shape, (apart, *values.stride()[1:])).copy_(values)
    given = numbers(2, 32, dtype=torch.float32, device=device)
    route = Route(offsets_of([0] * (experts - 1) + [2], device))
    if isinstance(weight, Int4Weight):
        far = replace(weight, packed=spread)
    else:
        far = replace(weight, values=spread)
    answer = TritonProducts().grouped(given, route, far, None)
    assert_close(answer, exactly(given, weight, experts - 1), torch.float32)


@given(counts=st.lists(st.integers(0, 70), min_size=1, max_size=40), height=st.integers(1, 40))
def test_there_are_never_too_few_tiles(counts: list[int], height: int) -> None:
    needed = sum(-(-count // height) for count in counts)
    assert needed <= most_tiles(sum(counts), len(counts), height)


def test_they_compile_for_hopper_and_nothing_spills() -> None:
    """Sorting, both products and combining, for few tokens and for many."""
    weight = "PlainWeight(torch.ones(8, 256, 256, dtype=torch.bfloat16))"
    call = (
        f"weight, products = {weight}, TritonProducts();"
        "chosen = torch.zeros(TOKENS, 2, dtype=torch.int64);"
        "order, offsets = products.sort(chosen, 8);"
        "rows = torch.ones(TOKENS, 256, dtype=torch.bfloat16);"
        "products.grouped(rows, Route(offsets, order, None, 2), weight, torch.ones(8, 256));"
        "answers = products.grouped(torch.ones(2 * TOKENS, 256, dtype=torch.bfloat16),"
        " Route(offsets, None, order, partly=True), weight, None);"
        "products.combine(answers.view(TOKENS, 2, 256), torch.ones(TOKENS, 2))"
    )
    calls = [call.replace("TOKENS", count) for count in ("3", "2000")]
    found = compiled("engine.kernels.gpu.products", *calls)
    assert sorted(found) == ["_combine", "_sort", "multiply_tiles"]
    assert not any(one["spilled"] for one in found.values())
    assert all(one["shared"] <= SHARED_BYTES for one in found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("dtype", "tokens"), REAL_ROWS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(1536, 2048), (2048, 768)])
def test_real_shapes(
    name: str, dtype: torch.dtype, tokens: int, outputs: int, inputs: int, device: torch.device
) -> None:
    experts, top_k = 128, 8
    weight = made(name, numbers(experts, outputs, inputs, dtype=dtype, device=device), 128)
    given = numbers(tokens, inputs, dtype=dtype, device=device)
    chosen = torch.rand(tokens, experts, device=device).topk(top_k).indices
    order, offsets = TritonProducts().sort(chosen, experts)
    route = Route(offsets, order, order, top_k)
    answer = TritonProducts().grouped(given, route, weight, None)
    assert_close(answer, exactly_by_token(given, chosen, weight), dtype, weight)
