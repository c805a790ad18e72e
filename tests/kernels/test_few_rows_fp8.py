"""Products of few rows with fp8 weights are those of separate launches, whatever is fused."""

import pytest
import torch
from torch import Tensor

from engine.kernels.fusion import NO_FUSION, Fusion, Gate, Residual, RowNorm
from engine.kernels.gpu import few_rows_fp8 as kernel
from engine.kernels.gpu.few_rows import few_rows_twin
from engine.kernels.gpu.few_rows_fp8 import MOST_FP8_ROWS, few_rows_fp8, few_rows_fp8_floor
from engine.kernels.gpu.norms import rms_norm_twin
from engine.kernels.products import TorchProducts
from engine.kernels.rows import QuantizedRows, quantize_rows_twin
from engine.kernels.weights import Fp8Weight, fp8_weight
from tests.kernels.ahead import compiled
from tests.kernels.test_few_rows import EPS, KINDS, SCALE, around, exactly, near
from tests.kernels.test_pointwise import TOLERANCE, hardly_numbers, poisoned

SIZES = [(5, 3), (1030, 11), (2052, 3), (4196, 3)]  # inputs; outputs, or gates
ODD, IN_WORDS, LONG = SIZES[1], SIZES[2], SIZES[3]  # of bytes; of words; quantized in each step
FORMATS = pytest.mark.parametrize("blocked", [False, True], ids=["channel", "blocked"])
COMPILED = """
from engine.kernels.fusion import Gate, Residual, RowNorm
values = torch.empty(1, {outputs}, {inputs}, dtype=torch.float8_e4m3fn)
weight = Fp8Weight(values, torch.empty(1, {groups}, {outputs}))
norm = RowNorm(torch.ones({inputs}).bfloat16(), 1e-5)
residual = Residual(torch.ones({rows}, {outputs}).bfloat16(), 1.0)
few_rows_fp8(torch.ones({rows}, {inputs}).bfloat16(), weight, None, {fusion})
"""
SHAPES = {
    "qkv": (4096, 6144, "Fusion(norm)"),
    "output": (4096, 4096, "Fusion(residual=residual)"),
    "gate and up": (4096, 28672, 'Fusion(norm, Gate("silu"))'),
    "down": (14336, 4096, "Fusion(residual=residual)"),
    "of 8192": (8192, 10240, "Fusion(norm)"),
}


def among_nan(inputs: int, outputs: int, device: torch.device, *, blocked: bool) -> Fp8Weight:
    """A weight whose numbers and scales are surrounded by NaN, which must not be read."""
    weight = fp8_weight(torch.randn(1, outputs, inputs) * inputs**-0.5, blocked=blocked)
    values = torch.full((1, outputs, inputs + 8), 127, dtype=torch.uint8)  # NaN
    values[:, :, 4 : 4 + inputs] = weight.values.view(torch.uint8)
    scales = torch.full((1, weight.scales.shape[1], outputs + 3), torch.nan)
    scales[:, :, :outputs] = weight.scales
    eight = values.to(device).view(torch.float8_e4m3fn)[:, :, 4 : 4 + inputs]
    return Fp8Weight(eight, scales.to(device)[:, :, :outputs])


def exact(given: Tensor, weight: Fp8Weight, bias: Tensor | None, fusion: Fusion) -> Tensor:
    """Rows are normed and quantized as elsewhere; the rest is in float64."""
    norm = fusion.norm
    normed = given if norm is None else rms_norm_twin(given, norm.weight, norm.eps)
    fitted = quantize_rows_twin(normed, weight.row_group)
    wide = QuantizedRows(fitted.values, fitted.scales, torch.float64, fitted.group).whole()
    return few_rows_twin(
        wide,
        weight.whole(0, torch.float64),
        None if bias is None else bias.double(),
        exactly(fusion._replace(norm=None)),
    )


@FORMATS
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_formula(kind: str, blocked: bool, device: torch.device) -> None:
    """Sizes, dtypes and numbers of rows take turns."""
    for number, (inputs, width) in enumerate(SIZES, start=KINDS.index(kind)):
        dtype, rows = [*TOLERANCE][number % 3], 1 + number % MOST_FP8_ROWS
        outputs = 2 * width if "gate" in kind or "clamp" in kind else width
        given = poisoned(rows, inputs, dtype, device)
        weight = among_nan(inputs, outputs, device, blocked=blocked)
        bias = torch.randn(outputs, device=device).to(dtype) if number % 2 else None
        beside = around(kind, rows, inputs, width, dtype, device)
        answer = few_rows_fp8(given, weight, bias, beside)
        near(answer, exact(given, weight, bias, beside))


@FORMATS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("inputs", [303, 2300, 4220])
def test_rows_are_quantized_to_the_bit_as_elsewhere(
    inputs: int, dtype: torch.dtype, blocked: bool, device: torch.device
) -> None:
    """Numbers that lie between two of e4m3, too: where the largest is 7 times a power of two,
    many do. Each output is one number of the row.
    """
    rows = torch.randint(128, 256, (2, inputs)) * 2.0 ** torch.randint(-9, 0, (2, inputs))
    rows[:, ::50] = 224.0
    rows = (rows * torch.tensor([[1.0], [-13.0]])).to(device, dtype)
    picked = torch.arange(0, inputs, inputs // 40)
    values = torch.zeros(1, len(picked), inputs)
    values[0, torch.arange(len(picked)), picked] = 1.0
    groups = -(-inputs // 128) if blocked else 1
    ones = torch.ones(1, groups, len(picked), device=device)
    weight = Fp8Weight(values.to(device, torch.float8_e4m3fn), ones)
    expected = quantize_rows_twin(rows, weight.row_group).whole()[:, picked]
    assert torch.equal(few_rows_fp8(rows, weight), expected.to(dtype))


@hardly_numbers
@FORMATS
@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, 0.0])
@pytest.mark.parametrize(("inputs", "outputs"), [ODD, LONG])
def test_rows_of_what_is_no_number_and_of_zeros(
    inputs: int, outputs: int, spoilt: float, blocked: bool, device: torch.device
) -> None:
    """As of separate launches, nothing is finite. The row beside has none of it."""
    weight = among_nan(inputs, outputs, device, blocked=blocked)
    rows = torch.randn(2, inputs, device=device)
    rows[1, 140 if spoilt else slice(None)] = spoilt
    for norm in (None, RowNorm(torch.ones(inputs, device=device), EPS)):
        normed = rows if norm is None else rms_norm_twin(rows, *norm)
        expected = TorchProducts().multiply(normed, weight)
        answer = few_rows_fp8(rows, weight, None, Fusion(norm))
        torch.testing.assert_close(answer[0], expected[0], rtol=1e-5, atol=1e-5)
        assert torch.equal(answer[1].isfinite(), expected[1].isfinite())
        assert bool(answer[1].eq(0).all()) == (spoilt == 0)


@FORMATS
@pytest.mark.parametrize(("inputs", "outputs"), [ODD, IN_WORDS, LONG])
def test_a_row_is_what_it_is_alone(
    inputs: int, outputs: int, blocked: bool, device: torch.device
) -> None:
    """To the bit in the interpreter; compiled for another number of rows, another product may
    be fused with its sum.
    """
    away = 1e-4 if device.type == "cuda" else 0
    weight = among_nan(inputs, outputs, device, blocked=blocked)
    given, norm = torch.randn(2, inputs, device=device), torch.randn(inputs, device=device)
    beside = Fusion(RowNorm(norm, EPS))
    together = few_rows_fp8(given, weight, None, beside)
    apart = [
        few_rows_fp8(one, weight, None, Fusion(RowNorm(norm, EPS))) for one in given.split(1)
    ]
    torch.testing.assert_close(torch.cat(apart), together, rtol=0, atol=away)


@FORMATS
def test_a_program_makes_outputs_until_there_are_no_more(
    blocked: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more tiles than programs that run at a time; the last tile has one output."""
    monkeypatch.setattr(kernel, "multiprocessors_of", lambda _device: 2)
    rows, outputs = 2, 8 * (2 * 3 * 2 + 1) + 1  # three tiles for a program, two for the others
    weight = among_nan(140, outputs, device, blocked=blocked)
    given, bias = torch.randn(rows, 140, device=device), torch.randn(outputs, device=device)
    near(few_rows_fp8(given, weight, bias), exact(given, weight, bias, NO_FUSION))


def test_a_product_is_rounded_before_its_gate_and_before_it_is_added(
    device: torch.device,
) -> None:
    """As with separate launches. In float16: the interpreter cuts bfloat16 off where a GPU
    rounds.
    """
    half = torch.float16
    one = torch.ones(1, 1, device=device).to(half)
    weight = fp8_weight(torch.ones(1, 2, 1, device=device))
    tail = torch.full((2,), 2.0**-11 + 2.0**-20, device=device).to(half)
    onto = Residual(torch.full((1, 2), -1.0, device=device).to(half), 1.0)
    added = few_rows_fp8(one, weight, tail, Fusion(residual=onto))
    assert float(added[0, 0]) == 2.0**-10
    gated = few_rows_fp8(one, weight, tail, Fusion(gate=Gate("silu")))
    once = torch.tensor(1 + 2.0**-10, dtype=torch.float64)
    assert gated[0, 0] == (once * once.sigmoid() * once).to(half)
    both = few_rows_fp8(one, weight, tail, Fusion(None, Gate("silu"), Residual(-gated, 1.0)))
    assert both[0, 0] == 0


def test_a_normed_row_is_rounded_before_it_is_quantized(device: torch.device) -> None:
    """To float16, in which 1.0625 + 2^-11 is 1.0625: in the middle of two numbers of e4m3, of
    which the even one is 1.0. Not rounded, it would be quantized to 1.125.
    """
    half, weight = torch.float16, fp8_weight(torch.ones(1, 1, 2, device=device))
    rows = torch.tensor([[448.0, 1.0]], device=device)
    norm = torch.tensor([1.0, 1.0625 + 2.0**-12], device=device)
    factor = float((rows.square().mean() + EPS).rsqrt())
    given = few_rows_fp8(rows.to(half), weight, None, Fusion(RowNorm(norm / factor, EPS)))
    assert float(given[0, 0]) == 449.0


@pytest.mark.parametrize("rows", [1, MOST_FP8_ROWS])
@FORMATS
def test_twins_are_torchs_products_of_quantized_rows(blocked: bool, rows: int) -> None:
    weight = fp8_weight(torch.randn(1, 12, 300), blocked=blocked)
    given, norm = torch.randn(rows, 300).bfloat16(), RowNorm(torch.randn(300), EPS)
    bias, onto = torch.randn(12).bfloat16(), Residual(torch.randn(rows, 12).bfloat16(), SCALE)
    made = TorchProducts().multiply(rms_norm_twin(given, *norm), weight, bias[None])
    expected = onto.rows.add(made, alpha=SCALE)
    assert torch.equal(few_rows_twin(given, weight, bias, Fusion(norm, None, onto)), expected)


def test_nothing_is_made_of_nothing(device: torch.device) -> None:
    weight = fp8_weight(torch.randn(1, 4, 8, device=device))
    assert few_rows_fp8(torch.empty(0, 8, device=device), weight).shape == (0, 4)
    with pytest.raises(ValueError, match="3 rows: at most 2 are few for an fp8 weight"):
        few_rows_fp8(torch.randn(3, 8, device=device), weight)
    with pytest.raises(KeyError, match="tanh"):
        few_rows_fp8(torch.randn(1, 8, device=device), weight, None, Fusion(gate=Gate("tanh")))


def test_its_floor_is_its_weight() -> None:
    def weight(groups: int) -> Fp8Weight:
        values = torch.empty(1, 28672, 4096, dtype=torch.float8_e4m3fn, device="meta")
        return Fp8Weight(values, torch.empty(1, groups, 28672, device="meta"))

    floor = few_rows_fp8_floor(2, weight(32), 2, gate=True)
    assert floor.bytes == 28672 * (4096 + 4 * 32) + 2 * 2 * (4096 + 14336)
    assert floor.operations == 2 * 2 * 28672 * 4096
    assert few_rows_fp8_floor(1, weight(1), 2, onto=True).bytes == 28672 * 4100 + 2 * (
        4096 + 28672 + 28672
    )


def code_of(shape: str, rows: int, *groups: int) -> dict[str, int]:
    """The most of each count, of weights with so many groups of inputs."""
    inputs, outputs, fusion = SHAPES[shape]
    sizes = {"rows": rows, "inputs": inputs, "outputs": outputs, "fusion": fusion}
    calls = [COMPILED.format(**sizes, groups=each) for each in groups]
    return compiled("engine.kernels.gpu.few_rows_fp8", *calls)["_few_rows_fp8"]


@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_it_reads_whole_vectors_and_hardly_spills(shape: str) -> None:
    """With one row nothing is spilled. Programs fit a multiprocessor four at a time; with two
    rows that are held, three.
    """
    inputs = SHAPES[shape][0]
    for rows in (1, 2):
        told = code_of(shape, rows, 1, inputs // 128)
        assert told["registers"] <= (168 if inputs == 4096 and rows == 2 else 128)
        assert told["spills_in_loops"] <= (0 if rows == 1 else 16 if shape != "output" else 56)
        assert told["narrow_loads"] <= rows  # of the residual, behind the loop


def test_threads_exchange_nothing_in_a_step() -> None:
    """With groups they find the largest number of each, in three exchanges for a row."""
    assert code_of("down", 2, 1)["exchanges_in_loops"] == 0
    assert code_of("down", 2, 14336 // 128)["exchanges_in_loops"] == 2 * 3


@pytest.mark.gpu
@FORMATS
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_real_shapes(dtype: torch.dtype, blocked: bool, device: torch.device) -> None:
    for kind, inputs, width in (
        ("norm", 4096, 6144),
        ("norm, gate", 4096, 14336),
        ("residual", 14336, 4096),
    ):
        outputs = 2 * width if "gate" in kind else width
        whole = torch.randn(1, outputs, inputs, device=device) * inputs**-0.5
        weight = fp8_weight(whole, blocked=blocked)
        for rows in range(1, MOST_FP8_ROWS + 1):
            given = torch.randn(rows, inputs, device=device, dtype=dtype)
            beside = around(kind, rows, inputs, width, dtype, device)
            answer = few_rows_fp8(given, weight, None, beside)
            tolerance = 0.02 if dtype is torch.float32 and beside.norm else 3 * TOLERANCE[dtype]
            expected = exact(given, weight, None, beside)
            away = (answer.double() - expected).abs().max() / expected.abs().max()
            assert away < tolerance
