"""Products in Triton are those of float64, of whatever numbers a weight was rounded to."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.gpu.products import TritonProducts
from engine.kernels.gpu.tiles import choose_tiles
from engine.kernels.products import TorchProducts
from engine.kernels.weights import (
    Fp8Weight,
    Int4Weight,
    PlainWeight,
    Weight,
    concat_outputs,
    fp8_weight,
    int4_weight,
    packed_halves,
    quantized_inputs,
)
from tests.kernels.ahead import compiled

CLOSE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
HOPPER_SUMS = 1e-3  # its tensor cores add products of 8 bits with some 13 bits of fraction
SHARED_BYTES = 227 << 10  # of a program, on Hopper
_EIGHT = "torch.ones(1, 512, 1024, dtype=torch.float8_e4m3fn)"
_BYTES = "torch.ones(1, 512, 8, 64, dtype=torch.uint8)"
_OF_GROUPS = "torch.ones(1, 8, 512, dtype=torch.bfloat16)"
_WEIGHTS = [
    f"Fp8Weight({_EIGHT}, torch.ones(1, 1, 512))",
    f"Fp8Weight({_EIGHT}, torch.ones(1, 8, 512))",
    f"Int4Weight({_BYTES}, {_OF_GROUPS}, {_OF_GROUPS}.to(torch.uint8), 1024)",
    f"Int4Weight({_BYTES}, {_OF_GROUPS}, None, 1024, torch.arange(1024).int()[None])",
]
FORMATS = [
    *("plain", "fp8", "fp8 in blocks", "int4", "int4 with zeros", "int4 in order"),
    "int4 with empty places",
]
REAL_ROWS = [
    *((torch.bfloat16, rows) for rows in (1, 16, 64, 2048)),
    *((torch.float16, rows) for rows in (1, 2048)),
    *((torch.float32, rows) for rows in (1, 64)),  # without tensor cores, and registers spill
]
NARROW = [name for name in FORMATS if name != "plain"]


def numbers(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype)


def with_zeros(like: Int4Weight) -> Int4Weight:
    zeros = torch.randint(0, 16, like.scales.shape, device=like.packed.device)
    return Int4Weight(like.packed, like.scales, zeros.to(torch.uint8), like.inputs)


def in_order(like: Int4Weight) -> Int4Weight:
    """Its groups have inputs from anywhere, those of each expert others."""
    experts, _, inputs = like.shape
    order = torch.stack([torch.randperm(inputs) for _ in range(experts)])
    return replace(like, order=order.int().to(like.packed.device))


def with_empty_places(values: Tensor, group: int) -> Int4Weight:
    """Some in each of its groups, with numbers that are of no account."""
    experts, outputs, inputs = values.shape
    more = torch.randn(experts, outputs, inputs // 2 + 3, device=values.device)
    wide = int4_weight(torch.cat((values, more.to(values.dtype)), 2), group)
    order = torch.stack([torch.randperm(wide.inputs) for _ in range(experts)])
    order = torch.where(order < inputs, order, -1).int().to(values.device)
    return replace(wide, inputs=inputs, order=order)


def made(name: str, values: Tensor, group: int = 32) -> Weight:
    if name == "plain":
        return PlainWeight(values)
    if name.startswith("fp8"):
        return fp8_weight(values, blocked=name.endswith("blocks"))
    if name.endswith("empty places"):
        return with_empty_places(values, group)
    weight = int4_weight(values, group)
    if name.endswith("order"):
        return in_order(weight)
    return with_zeros(weight) if name.endswith("zeros") else weight


def exactly(rows: Tensor, weight: Weight, expert: int = 0) -> Tensor:
    """[rows, outputs] in float64, on the CPU."""
    return (
        quantized_inputs(rows, weight).double() @ weight.whole(expert, torch.float64).T
    ).cpu()


def assert_close(
    answer: Tensor, exact: Tensor, dtype: torch.dtype, weight: Weight | None = None
) -> None:
    """Of many rows by this weight, which tensor cores may multiply in 8 bits."""
    eight_bits = answer.is_cuda and isinstance(weight, Fp8Weight)
    most = max(CLOSE[dtype], HOPPER_SUMS if eight_bits else 0)
    away = (answer.double().cpu() - exact).norm() / exact.norm().clamp(min=1e-30)
    assert away < most, f"{away:.2e} away"
    assert torch.isfinite(answer).all()


def inside(tensor: Tensor, margin: int = 3) -> Tensor:
    """The same numbers with NaN all around: rows, and the ends of rows."""
    rows, size = tensor.shape
    padded = torch.full(
        (rows + 2 * margin, size + 2 * margin), torch.nan, dtype=tensor.dtype
    ).to(tensor.device)
    padded[margin:-margin, margin:-margin] = tensor
    return padded[margin:-margin, margin:-margin]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 70, 130), (5, 33, 51), (18, 1, 9)])
def test_a_product_is_that_of_float64(
    name: str, dtype: torch.dtype, rows: int, outputs: int, inputs: int, device: torch.device
) -> None:
    values = numbers(1, outputs, inputs, dtype=dtype, device=device)
    given = inside(numbers(rows, inputs, dtype=dtype, device=device))
    bias = numbers(1, outputs, dtype=dtype, device=device) if rows % 2 else None
    weight = made(name, values)
    exact = exactly(given, weight) + (0 if bias is None else bias.double().cpu())
    for products in (TritonProducts(), TorchProducts()):
        assert_close(products.multiply(given, weight, bias), exact, dtype)


@pytest.mark.parametrize("name", FORMATS)
def test_inputs_in_parts_add_up_to_the_whole(name: str, device: torch.device) -> None:
    values = numbers(1, 40, 1090, dtype=torch.float32, device=device)
    weight, bias = made(name, values, 64), numbers(1, 40, dtype=torch.float32, device=device)
    given = numbers(3, 1090, dtype=torch.float32, device=device)
    assert choose_tiles(3, weight, 132).splits > 1
    answer = TritonProducts().multiply(given, weight, bias)
    assert_close(answer, exactly(given, weight) + bias.double().cpu(), torch.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_many_rows_are_made_in_large_tiles_and_in_parts(
    name: str, device: torch.device
) -> None:
    inputs = 1030 if name.startswith("fp8") else 260  # so that there are parts
    weight = made(name, numbers(1, 140, inputs, dtype=torch.float32, device=device))
    given = numbers(130, inputs, dtype=torch.float32, device=device)
    tiles = choose_tiles(130, weight, 132)
    assert tiles.rows == tiles.outputs == 128
    assert tiles.splits > 1
    answer = TritonProducts().multiply(given, weight)
    assert_close(answer, exactly(given, weight), torch.float32, weight)


@drawn(rows=st.integers(1, 20000), outputs=st.integers(1, 200000), inputs=st.integers(1, 30000))
def test_parts_cover_all_inputs_and_none_is_empty(rows: int, outputs: int, inputs: int) -> None:
    weight = PlainWeight(torch.empty(1, outputs, inputs, dtype=torch.bfloat16, device="meta"))
    tiles = choose_tiles(rows, weight, 132)
    steps = -(-inputs // tiles.step)
    each = -(-steps // tiles.splits)
    assert (tiles.splits - 1) * each < steps <= tiles.splits * each


@pytest.mark.parametrize("name", ["fp8", "fp8 in blocks"])
def test_a_scale_of_zero_is_a_weight_of_zero(name: str, device: torch.device) -> None:
    weight = made(name, numbers(1, 24, 160, dtype=torch.float32, device=device))
    assert isinstance(weight, Fp8Weight)
    weight.scales[..., 5] = 0
    given = numbers(2, 160, dtype=torch.float32, device=device)
    answer = TritonProducts().multiply(given, weight)
    assert_close(answer, exactly(given, weight), torch.float32)
    assert not answer[:, 5].any()


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_the_same_among_others(name: str, device: torch.device) -> None:
    """To the bit, as far as few rows go: parts do not depend on how many there are."""
    values = numbers(1, 20, 600, dtype=torch.float32, device=device)
    weight, given = made(name, values), numbers(20, 600, dtype=torch.float32, device=device)
    many = TritonProducts().multiply(given, weight)
    alone = torch.cat([TritonProducts().multiply(row[None], weight) for row in given[-2:]])
    close = 0.0 if device.type == "cuda" else 1e-5  # numpy sums tiles of each height its way
    torch.testing.assert_close(alone, many[-2:], rtol=close, atol=close)


@pytest.mark.parametrize("name", NARROW)
def test_zeros_and_huge_numbers_leave_no_hole(name: str, device: torch.device) -> None:
    """Groups of zeros have a scale all the same, and an outlier harms its own group alone."""
    values = numbers(1, 24, 160, dtype=torch.float32, device=device)
    values[0, 3], values[0, 5, 17], values[0, 6] = 0, 3e4, 1e-40
    weight = made(name, values)
    given = numbers(4, 160, dtype=torch.float32, device=device)
    given[1], given[2, 9], given[3] = 0, 1e6, 1e-42
    answer = TritonProducts().multiply(given, weight)
    exact = exactly(given, weight)
    assert_close(answer[:3], exact[:3], torch.float32)
    assert answer[1].count_nonzero() == 0
    assert answer[3].abs().max() < 1e-30


@pytest.mark.parametrize("name", ["fp8", "fp8 in blocks"])
def test_a_row_that_is_no_number_is_seen_and_stays_alone(
    name: str, device: torch.device
) -> None:
    weight = made(name, numbers(1, 24, 160, dtype=torch.float32, device=device))
    given = numbers(3, 160, dtype=torch.float32, device=device)
    given[1, 150] = torch.nan
    for products in (TritonProducts(), TorchProducts()):
        answer = products.multiply(given, weight)
        assert answer[1].isnan().all()
        assert answer[[0, 2]].isfinite().all()


def test_no_rows_have_no_answer(device: torch.device) -> None:
    for name in FORMATS:
        weight = made(name, numbers(1, 24, 64, dtype=torch.float32, device=device))
        given = numbers(0, 64, dtype=torch.float32, device=device)
        assert TritonProducts().multiply(given, weight).shape == (0, 24)


def test_an_order_says_which_input_is_at_which_place() -> None:
    weight = int4_weight(torch.randn(2, 24, 70), 32)
    moved = in_order(weight)
    assert moved.order is not None
    for expert in range(2):
        order, whole = moved.order[expert].tolist(), moved.whole(expert)
        for place, column in enumerate(order):
            assert torch.equal(whole[:, column], weight.whole(expert)[:, place])


def test_outputs_of_other_orders_are_not_put_together() -> None:
    one = int4_weight(torch.randn(1, 24, 70), 32)
    for other in (in_order(one), one):
        assert concat_outputs([other, other]).shape == (1, 48, 70)
    with pytest.raises(AssertionError, match="one order"):
        concat_outputs([one, in_order(one)])
    with pytest.raises(AssertionError, match="one order"):
        concat_outputs([in_order(one), in_order(one)])


def test_bytes_hold_their_numbers_half_a_group_apart() -> None:
    numbers = torch.arange(16)
    packed = packed_halves(numbers)
    assert packed.tolist() == [low + 16 * (low + 8) for low in range(8)]
    weight = Int4Weight(packed.view(1, 1, 1, 8), torch.full((1, 1, 1), 2.0), None, 15)
    assert weight.whole(0).tolist() == [[2.0 * (number - 8) for number in range(15)]]


@pytest.mark.parametrize(
    ("name", "most"), [("fp8", 0.04), ("fp8 in blocks", 0.04), ("int4", 0.13)]
)
def test_rounding_costs_what_the_format_costs(name: str, most: float) -> None:
    values = torch.randn(1, 130, 256)
    weight = made(name, values, 128)
    away = (weight.whole(0) - values[0]).norm() / values.norm()
    assert most / 3 < away < most


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("dtype", "rows"), REAL_ROWS, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(28672, 4096), (4096, 14336), (6144, 4096)])
def test_real_shapes(
    name: str, dtype: torch.dtype, rows: int, outputs: int, inputs: int, device: torch.device
) -> None:
    weight = made(name, numbers(1, outputs, inputs, dtype=dtype, device=device), 128)
    given = numbers(rows, inputs, dtype=dtype, device=device)
    answer = TritonProducts().multiply(given, weight)
    assert_close(answer, exactly(given, weight), dtype, weight)


@pytest.mark.parametrize("half", ["torch.bfloat16", "torch.float16"])
def test_they_compile_for_hopper_and_nothing_spills(half: str) -> None:
    calls = [
        "from engine.kernels.weights import Fp8Weight, Int4Weight;"
        f"weight = {weight.replace('torch.bfloat16', half)};"
        f"[TritonProducts().multiply(torch.ones(rows, 1024, dtype={half}), weight) "
        "for rows in (4, 300)]"
        for weight in _WEIGHTS
    ]
    found = compiled("engine.kernels.gpu.products", *calls)
    assert sorted(found) == ["_round_groups", "_round_whole", "add_up", "multiply_tiles"]
    assert not any(one["spilled"] for one in found.values())
    assert all(one["shared"] <= SHARED_BYTES for one in found.values())
