"""Norms and gates that round make the very bits that rounding their rows afterwards makes."""

import pytest
import torch
from torch import Tensor

from engine.kernels.contract import DualOutputNorms, Kernels, QuantizedOutputKernels
from engine.kernels.gpu.gates import MOST_HELD, gate_floor
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.norms import norm_floor
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.gpu.rounding import LONGEST, quantize_rows
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.products import Route, TorchProducts
from engine.kernels.rows import DualRows, QuantizedRows, quantize_rows_twin, whole_rows
from engine.kernels.weights import fp8_weight
from tests.kernels.ahead import compiled
from tests.kernels.test_pointwise import TOLERANCE, hardly_numbers, poisoned

GROUPS = [None, 128]
CLAMP = (1.702, 7.0)
LAST_BITS, SELDOM = 1e-6, 1e-3


def equal(one: QuantizedRows, other: QuantizedRows) -> None:
    assert one.dtype is other.dtype
    for ours, theirs in ((one.values, other.values), (one.scales, other.scales)):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0, atol=0, equal_nan=True)


def normed_alike(one: QuantizedRows, other: QuantizedRows) -> None:
    """Equal in the interpreter. Two kernels of a GPU add a row up in different orders, so there
    a scale's last bits may differ, and a number in the middle between two of 8 bits.
    """
    if not one.values.is_cuda:
        equal(one, other)
        return
    assert one.dtype is other.dtype
    torch.testing.assert_close(one.scales, other.scales, rtol=LAST_BITS, atol=0, equal_nan=True)
    ours, theirs = one.values.float(), other.values.float()
    torch.testing.assert_close(ours, theirs, rtol=0.13, atol=2.0**-9, equal_nan=True)
    different = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    assert different.sum() <= max(1, SELDOM * ours.numel())


def both_equal(ours: DualRows, whole: Tensor, group: int | None) -> None:
    """`ours` is `whole`, to its last bits on a GPU, and what rounding ours afterwards makes."""
    assert ours.quantized.group == group
    assert ours.dtype is whole.dtype
    away = 4 * torch.finfo(whole.dtype).eps if whole.is_cuda else 0.0
    torch.testing.assert_close(ours.whole, whole, rtol=away, atol=0, equal_nan=True)
    equal(ours.quantized, quantize_rows_twin(ours.whole, group))


def rounding(group: int | None) -> tuple[Kernels, QuantizedOutputKernels]:
    kernels = TritonKernels()
    return kernels, kernels.quantized(group)


def both_ways(group: int | None) -> tuple[Kernels, DualOutputNorms]:
    kernels = TritonKernels()
    return kernels, kernels.dual(group)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 5), (3, 300), (1030, 5)])
def test_norms(
    rows: int, size: int, dtype: torch.dtype, group: int | None, device: torch.device
) -> None:
    """Of rows of every magnitude; those of the last go several to a program."""
    kernels, rounded = rounding(group)
    x, residual = (poisoned(rows, size, dtype, device) for _ in range(2))
    x *= 2.0 ** torch.randint(-4, 5, (rows, 1)).to(x)
    weight = torch.randn(size, device=device) * 2.0 ** torch.arange(size, device=device).div(40)
    normed_alike(
        rounded.norm(x, weight, 1e-3), quantize_rows_twin(kernels.norm(x, weight, 1e-3), group)
    )
    normed, added = kernels.add_norm(x, residual, weight, 1e-3, 0.3)
    ours, sum_ = rounded.add_norm(x, residual, weight, 1e-3, 0.3)
    normed_alike(ours, quantize_rows_twin(normed, group))
    assert torch.equal(sum_, added)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 5), (3, 300), (1030, 130)])
def test_norms_that_come_both_ways(
    rows: int, size: int, dtype: torch.dtype, group: int | None, device: torch.device
) -> None:
    """To the bit what comes out whole, and that rounded."""
    kernels, both = both_ways(group)
    x, residual = (poisoned(rows, size, dtype, device) for _ in range(2))
    x *= 2.0 ** torch.randint(-4, 5, (rows, 1)).to(x)
    weight = torch.randn(size, device=device) * 2.0 ** torch.arange(size, device=device).div(40)
    both_equal(both.norm(x, weight, 1e-3), kernels.norm(x, weight, 1e-3), group)
    normed, added = kernels.add_norm(x, residual, weight, 1e-3, 0.3)
    ours, sum_ = both.add_norm(x, residual, weight, 1e-3, 0.3)
    both_equal(ours, normed, group)
    assert torch.equal(sum_, added)


def test_a_norm_of_several_rows_with_several_groups(device: torch.device) -> None:
    kernels, rounded = rounding(128)
    x, weight = torch.randn(1030, 130, device=device), torch.randn(130, device=device)
    normed_alike(
        rounded.norm(x, weight, 1e-3), quantize_rows_twin(kernels.norm(x, weight, 1e-3), 128)
    )


@hardly_numbers
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("gate", TritonKernels().gates)
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 1300)])
def test_gates(
    rows: int,
    width: int,
    gate: str,
    dtype: torch.dtype,
    group: int | None,
    device: torch.device,
) -> None:
    kernels, rounded = rounding(group)
    clamp = CLAMP if gate.startswith("clamped") else None
    both = 3 * poisoned(rows, 2 * width, dtype, device)
    equal(
        rounded.gated(both, gate, clamp),
        quantize_rows_twin(kernels.gated(both, gate, clamp), group),
    )
    squares = kernels.squared_relu(both)
    equal(rounded.squared_relu(both), quantize_rows_twin(squares, group))


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("width", [LONGEST + 77, MOST_HELD + 77])
def test_a_gate_wider_than_usual_and_than_a_program_holds(
    width: int, group: int | None, device: torch.device
) -> None:
    kernels, rounded = rounding(group)
    both = torch.randn(2, 2 * width, device=device)
    both[0, width - 1] = 1e3
    equal(rounded.gated(both, "silu"), quantize_rows_twin(kernels.gated(both, "silu"), group))


@hardly_numbers
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, 3e38])
def test_what_is_no_number_is_seen(
    spoilt: float, group: int | None, device: torch.device
) -> None:
    kernels, rounded = rounding(group)
    x = torch.randn(3, 300, device=device)
    x[1, 140] = spoilt
    weight = torch.ones(300, device=device)
    both, nothing = torch.cat((x, x), 1), torch.zeros_like(x)
    equal(rounded.norm(x, weight, 1e-3), quantize_rows(kernels.norm(x, weight, 1e-3), group))
    equal(rounded.gated(both, "silu"), quantize_rows(kernels.gated(both, "silu"), group))
    equal(rounded.norm(nothing, weight, 1e-3), quantize_rows(nothing, group))
    beside = both_ways(group)[1].norm(x, weight, 1e-3)
    equal(beside.quantized, quantize_rows(beside.whole, group))


@pytest.mark.parametrize("group", GROUPS)
def test_twins_round_what_twins_make(group: int | None, device: torch.device) -> None:
    twins, rounded = TorchKernels(), TorchKernels().quantized(group)
    x, both = torch.randn(3, 300, device=device), torch.randn(3, 600, device=device)
    weight = torch.randn(300, device=device)
    equal(rounded.norm(x, weight, 1e-3), quantize_rows_twin(twins.norm(x, weight, 1e-3), group))
    normed, added = twins.add_norm(x, x, weight, 1e-3, 0.3)
    ours, sum_ = rounded.add_norm(x, x, weight, 1e-3, 0.3)
    equal(ours, quantize_rows_twin(normed, group))
    assert torch.equal(sum_, added)
    equal(rounded.gated(both, "gelu"), quantize_rows_twin(twins.gated(both, "gelu"), group))


@pytest.mark.parametrize("group", GROUPS)
def test_twins_make_both_as_kernels_do(group: int | None, device: torch.device) -> None:
    twins, both = TorchKernels(), TorchKernels().dual(group)
    x, weight = torch.randn(3, 300, device=device), torch.randn(300, device=device)
    both_equal(both.norm(x, weight, 1e-3), twins.norm(x, weight, 1e-3), group)
    normed, added = twins.add_norm(x, x, weight, 1e-3, 0.3)
    ours, sum_ = both.add_norm(x, x, weight, 1e-3, 0.3)
    both_equal(ours, normed, group)
    assert torch.equal(sum_, added)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("blocked", [False, True])
def test_of_both_a_product_takes_what_it_wants(
    blocked: bool, group: int | None, device: torch.device
) -> None:
    """QuantizedRows in the groups it has, if they are those; else it rounds what is whole."""
    weight = fp8_weight(torch.randn(1, 24, 300, device=device), blocked=blocked)
    rows = torch.randn(6, 300, device=device)
    fits = weight.row_group == group
    elsewhere = quantize_rows(rows if fits else torch.full_like(rows, torch.nan), group)
    unlike = torch.full_like(rows, torch.nan) if fits else rows
    given = DualRows(unlike, elsewhere)
    for products in (TritonProducts(), TorchProducts()):
        assert torch.equal(products.multiply(given, weight), products.multiply(rows, weight))
    assert whole_rows(given) is unlike


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_products_take_them_as_they_round_themselves(
    blocked: bool, dtype: torch.dtype, device: torch.device
) -> None:
    """One or many experts: the answers are the same to the bit, in the dtype of the rows."""
    weight = fp8_weight(torch.randn(3, 24, 300, device=device), blocked=blocked)
    rows = torch.randn(6, 300, device=device).to(dtype)
    ours = quantize_rows(rows, weight.row_group)
    offsets = torch.tensor([0, 2, 2, 6], dtype=torch.int32, device=device)
    one = fp8_weight(torch.randn(1, 24, 300, device=device), blocked=blocked)
    for products in (TritonProducts(), TorchProducts()):
        answer = products.multiply(ours, one)
        assert answer.dtype is dtype
        assert torch.equal(answer, products.multiply(rows, one))
        answer, route = products.grouped(ours, Route(offsets), weight, None), Route(offsets)
        assert torch.equal(answer, products.grouped(rows, route, weight, None))


def test_rows_are_refused_that_are_rounded_otherwise(device: torch.device) -> None:
    weight = fp8_weight(torch.randn(1, 24, 300, device=device), blocked=True)
    rows = quantize_rows(torch.randn(2, 300, device=device), None)
    for products in (TritonProducts(), TorchProducts()):
        with pytest.raises(AssertionError, match="as this weight wants"):
            products.multiply(rows, weight)


def test_no_rows_are_no_launch(device: torch.device) -> None:
    nothing, weight = torch.empty(0, 6, device=device), torch.ones(6, device=device)
    for group in GROUPS:
        _, rounded = rounding(group)
        assert rounded.norm(nothing, weight, 1e-5).values.shape == (0, 6)
        assert rounded.add_norm(nothing, nothing, weight, 1e-5, 1.0)[0].scales.shape == (0, 1)
        assert len(rounded.gated(nothing, "silu")) == 0
        both = both_ways(group)[1]
        assert both.norm(nothing, weight, 1e-5).quantized.values.shape == (0, 6)
        assert len(both.add_norm(nothing, nothing, weight, 1e-5, 1.0)[0]) == 0


def test_floors_count_a_byte_for_each_number_that_is_rounded() -> None:
    assert norm_floor(64, 4096, 2, written=1).bytes == 3 * 64 * 4096 + 4096 * 2
    whole = norm_floor(64, 4096, 2, residual=True).bytes
    assert whole - norm_floor(64, 4096, 2, residual=True, written=1).bytes == 64 * 4096
    assert norm_floor(64, 4096, 2, residual=True, written=3).bytes - whole == 64 * 4096
    assert gate_floor(64, 14336, 2, written=1).bytes == 5 * 64 * 14336


def test_they_compile_for_hopper_and_spill_nothing() -> None:
    def of(*shape: int) -> str:
        return f"torch.ones({', '.join(map(str, shape))}, dtype=torch.bfloat16)"

    found = compiled(
        "engine.kernels.gpu.norms",
        *(
            f"[norm_quantized({x}, torch.ones({size}), 1e-5, {group}),"
            f"add_norm_quantized({x}, {x}, torch.ones({size}), 1e-5, 1.0, {group}),"
            f"norm_dual({x}, torch.ones({size}), 1e-5, {group}),"
            f"add_norm_dual({x}, {x}, torch.ones({size}), 1e-5, 1.0, {group})]"
            for x, size in ((of(2, 8192), 8192), (of(2000, 512), 512), (of(3, 14336), 14336))
            for group in GROUPS
        ),
    )
    found |= compiled(
        "engine.kernels.gpu.gates",
        *(
            f"[gated_quantized({of(3, 28672)}, one, {group}) for one in ACTIVATIONS]"
            for group in GROUPS
        ),
        f"gated_quantized({of(3, 300)}, 'silu', None)",
    )
    assert sorted(found) == ["_add_norm", "_norm", "_round_gate", "_round_gate_groups"]
    assert not any(one["spilled"] for one in found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("rows", [1, 64, 2048])
def test_real_shapes(rows: int, group: int | None, device: torch.device) -> None:
    """The device sums as it does without rounding, so the bits are the same there, too."""
    kernels, rounded = TritonKernels(), TritonKernels().quantized(group)

    def numbers(size: int) -> Tensor:
        return torch.randn(rows, size, device=device, dtype=torch.bfloat16)

    x, residual, weight = numbers(4096), numbers(4096), torch.randn(4096, device=device)
    equal(rounded.norm(x, weight, 1e-5), quantize_rows(kernels.norm(x, weight, 1e-5), group))
    normed, added = kernels.add_norm(x, residual, weight, 1e-5, 1.0)
    ours, sum_ = rounded.add_norm(x, residual, weight, 1e-5, 1.0)
    equal(ours, quantize_rows(normed, group))
    assert torch.equal(sum_, added)
    beside, sum_ = kernels.dual(group).add_norm(x, residual, weight, 1e-5, 1.0)
    assert torch.equal(beside.whole, normed)
    equal(beside.quantized, quantize_rows(normed, group))
    assert torch.equal(sum_, added)
    both = numbers(28672)
    equal(rounded.gated(both, "silu"), quantize_rows(kernels.gated(both, "silu"), group))
