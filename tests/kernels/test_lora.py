"""What adapters add to a layer's outputs is what each row's own factors make of it."""

import pytest
import torch
from torch import Tensor

from engine.kernels.gpu.lora import adapters_floor
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.lora import AdapterStack, SortedRows
from engine.kernels.products import Products, TorchProducts
from tests.kernels.ahead import compiled
from tests.kernels.test_grouped_products import offsets_of
from tests.kernels.test_products import numbers

EVERYBODY = (TritonProducts(), TorchProducts())
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
COUNTS = {  # of each adapter, and of rows without any
    "a few each": [3, 1, 2, 5],
    "the only one": [4, 0],
    "nobody at the ends": [0, 7, 0, 17, 0, 2],
    "no row has any": [0, 0, 9],
    "more than a tile": [33, 16, 1],
    "more than few": [70, 3, 8],
}
COMPILED = """
bf16 = torch.bfloat16
down = torch.empty({adapters}, {rank}, 4096, dtype=bf16)
up = torch.empty({adapters}, 6144, {rank}, dtype=bf16)
rows = SortedRows(torch.empty({rows}).int(), torch.empty({adapters} + 1).int())
outputs, inputs = torch.empty({rows}, 6144, dtype=bf16), torch.empty({rows}, 4096, dtype=bf16)
add_adapters(outputs, inputs, rows, AdapterStack(down, up))
"""


def sorted_rows(counts: list[int], device: torch.device) -> SortedRows:
    """Rows in an arbitrary order, as many as `counts` has them; the last without an adapter."""
    order = torch.randperm(sum(counts), device=device).int()
    return SortedRows(order, offsets_of(counts[:-1], device))


def stack_of(adapters: int, shape: tuple[int, int, int], like: Tensor) -> AdapterStack:
    rank, inputs, outputs = shape
    kind, device = like.dtype, like.device
    down = torch.randn(adapters, rank, inputs, dtype=kind, device=device) * inputs**-0.5
    up = torch.randn(adapters, outputs, rank, dtype=kind, device=device) * rank**-0.5
    return AdapterStack(down, up)


def exactly(outputs: Tensor, inputs: Tensor, rows: SortedRows, stack: AdapterStack) -> Tensor:
    """In float64, a row at a time; only A's result is rounded."""
    exact, offsets = outputs.double(), rows.offsets.tolist()
    for place, row in enumerate(rows.order.tolist()):
        owner = sum(place >= end for end in offsets[1:])
        if owner < len(offsets) - 1:
            inner = (stack.down[owner].double() @ inputs[row].double()).to(inputs.dtype)
            exact[row] += stack.up[owner].double() @ inner.double()
    return exact


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("products", EVERYBODY, ids=["triton", "torch"])
def test_each_row_gets_what_its_own_adapter_makes(
    products: Products, dtype: torch.dtype, counts: list[int], device: torch.device
) -> None:
    inputs = numbers(sum(counts), 300, dtype=dtype, device=device)
    outputs = numbers(sum(counts), 70, dtype=dtype, device=device)
    rows = sorted_rows(counts, device)
    stack = stack_of(len(counts) - 1, (24, 300, 70), inputs)
    right = exactly(outputs, inputs, rows, stack)
    answer = products.add_adapters(outputs, inputs, rows, stack)
    assert answer is outputs
    close = TOLERANCE[dtype]
    torch.testing.assert_close(answer.double(), right, atol=close, rtol=close)


def test_rows_without_an_adapter_keep_their_bits(device: torch.device) -> None:
    inputs = torch.full((5, 40), torch.nan, device=device)
    outputs = torch.randn(5, 30, device=device)
    before, rows = outputs.clone(), sorted_rows([0, 0, 5], device)
    stack = stack_of(2, (16, 40, 30), inputs)
    assert torch.equal(TritonProducts().add_adapters(outputs, inputs, rows, stack), before)


def test_a_row_says_the_same_whoever_is_beside_it(device: torch.device) -> None:
    inputs, outputs = torch.randn(40, 600, device=device), torch.randn(40, 70, device=device)
    stack, rows = stack_of(3, (16, 600, 70), inputs), sorted_rows([9, 20, 8, 3], device)
    together = TritonProducts().add_adapters(outputs.clone(), inputs, rows, stack)
    (row,) = rows.order[9:10].tolist()
    alone = SortedRows(torch.zeros(1, device=device).int(), offsets_of([0, 1, 0], device))
    ours = slice(row, row + 1)
    said = TritonProducts().add_adapters(outputs[ours].clone(), inputs[ours], alone, stack)
    assert torch.equal(said[0], together[row])


@pytest.mark.parametrize("rank", [16, 80, 200])
def test_any_rank_and_views_of_larger_tensors(rank: int, device: torch.device) -> None:
    inputs = torch.randn(7, 150, device=device)[:, :130]
    outputs = torch.randn(7, 200, device=device)[:, :140]
    rows, stack = sorted_rows([2, 4, 1], device), stack_of(2, (rank, 130, 140), inputs)
    right = exactly(outputs, inputs, rows, stack)
    answer = TritonProducts().add_adapters(outputs, inputs, rows, stack)
    torch.testing.assert_close(answer.double(), right, atol=1e-5, rtol=1e-5)


def test_without_rows_nothing_is_launched(device: torch.device) -> None:
    rows, inputs = sorted_rows([0, 0], device), torch.empty(0, 8, device=device)
    outputs, stack = torch.empty(0, 4, device=device), stack_of(1, (16, 8, 4), inputs)
    assert TritonProducts().add_adapters(outputs, inputs, rows, stack).shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("counts", [[1, 0, 0, 0], [8] * 8, [300, 0, 900, 848]], ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_real_shapes(dtype: torch.dtype, counts: list[int], device: torch.device) -> None:
    inputs = torch.randn(sum(counts), 4096, device=device, dtype=dtype)
    outputs = torch.randn(sum(counts), 6144, device=device, dtype=dtype)
    rows, stack = (
        sorted_rows(counts, device),
        stack_of(len(counts) - 1, (48, 4096, 6144), inputs),
    )
    right = exactly(outputs, inputs, rows, stack)
    answer = TritonProducts().add_adapters(outputs, inputs, rows, stack)
    close = TOLERANCE[dtype]
    torch.testing.assert_close(answer.double(), right, atol=close, rtol=close)


def test_a_compiler_spills_nothing_and_loads_whole_vectors() -> None:
    sizes = [(1, 16, 1), (64, 48, 8), (2048, 48, 8), (2048, 192, 8)]
    calls = [
        COMPILED.format(rows=rows, rank=rank, adapters=adapters)
        for rows, rank, adapters in sizes
    ]
    found = compiled("engine.kernels.gpu.lora", *calls)
    assert sorted(found) == ["_expand", "_shrink"]
    for kernel in found.values():
        assert kernel["spilled"] == kernel["narrow_loads"] == kernel["narrow_stores"] == 0
        assert kernel["wgmma"] > 0  # with many rows


def test_the_floor_is_the_used_factors_and_the_rows() -> None:
    like = torch.empty(0, dtype=torch.bfloat16)
    floor = adapters_floor(64, stack_of(8, (48, 4096, 6144), like), used=2, itemsize=2)
    assert floor.bytes == 2 * (2 * 48 * 10240 + 64 * (4096 + 2 * 6144))
    assert floor.operations == 2 * 64 * 48 * 10240
