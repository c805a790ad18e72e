"""Mixtures of few rows are their formula, and a token's is its own."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from engine.kernels.fusion import Choice, ExpertWeights, Fusion, Gate, Residual, RowNorm
from engine.kernels.gpu.few_row_experts import (
    few_row_experts_floor,
    mix_few_rows,
    mix_few_rows_twin,
)
from engine.kernels.gpu.few_rows import MOST_ROWS, few_row_scores, few_row_scores_twin
from engine.kernels.products import Route, TorchProducts
from engine.kernels.weights import PlainWeight
from tests.kernels.ahead import compiled
from tests.kernels.test_few_rows import near
from tests.kernels.test_pointwise import TOLERANCE, poisoned

EPS, SCALE = 1e-3, 0.5
SIZES = [(5, 3, 4, 1), (38, 10, 7, 3)]  # hidden, width, experts, top_k
KINDS = ("alone", "norm, residual", "wide norm", "biases, clamp", "biases, residual")
COMPILED = """
from engine.kernels.fusion import Gate, Residual, RowNorm
for rows in (1, 4):
    x = torch.ones(rows, 2048).bfloat16()
    choice = Choice(torch.empty(rows, 8), torch.empty(rows, 8, dtype=torch.int64))
    inward = ExpertWeights(torch.empty(128, 1536, 2048).bfloat16(), None)
    outward = ExpertWeights(torch.empty(128, 2048, 768).bfloat16(), None)
    around = Fusion(RowNorm(torch.ones(2048).bfloat16(), 1e-5), Gate("silu"), Residual(x, 1.0))
    mix_few_rows(x, choice, inward, outward, around)
"""


class Mixture(NamedTuple):
    """The arguments of `mix_few_rows`; weights lie among NaN."""

    rows: Tensor
    choice: Choice
    gate_up: ExpertWeights
    down: ExpertWeights
    fusion: Fusion

    def exactly(self) -> "Mixture":
        """The same numbers in float64."""
        inward, outward = (
            ExpertWeights(weight.double(), _double(bias))
            for weight, bias in (self.gate_up, self.down)
        )
        norm, gate, onto = self.fusion
        if norm is not None:
            norm = norm._replace(weight=norm.weight.double())
        if onto is not None:
            onto = onto._replace(rows=onto.rows.double())
        around = Fusion(norm, gate, onto)
        return Mixture(self.rows.double(), self.choice, inward, outward, around)


def _double(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.double()


def mixture(
    kind: str, rows: int, sizes: tuple[int, int, int, int], dtype: torch.dtype,
    device: torch.device,
) -> Mixture:  # fmt: skip
    hidden, width, experts, top_k = sizes

    def linear(outputs: int, inputs: int) -> ExpertWeights:
        weight = poisoned(experts * (outputs + 2), inputs, dtype, device)
        weight = weight.unflatten(0, (experts, -1))
        weight[:, outputs:] = torch.nan
        bias = (
            torch.randn(experts, outputs, device=device).to(dtype) if "bias" in kind else None
        )
        return ExpertWeights(weight[:, :outputs] * inputs**-0.5, bias)

    picked = torch.stack([torch.randperm(experts)[:top_k] for _ in range(rows)])
    choice = Choice(torch.rand(rows, top_k).to(device), picked.to(device))
    norm, onto = None, None
    if "norm" in kind:
        wide = torch.float32 if "wide" in kind else dtype
        norm = RowNorm(torch.randn(hidden, device=device).to(wide), EPS)
    if "residual" in kind:
        onto = Residual(poisoned(rows, hidden, dtype, device), SCALE)
    gate = Gate("clamped_swiglu", (1.7, 0.8)) if "clamp" in kind else Gate("silu")
    given = poisoned(rows, hidden, dtype, device)
    inward, outward = linear(2 * width, hidden), linear(hidden, width)
    return Mixture(given, choice, inward, outward, Fusion(norm, gate, onto))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", SIZES)
def test_it_is_the_formula(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, kind: str, device: torch.device
) -> None:
    for rows in (1, 2, MOST_ROWS):
        one = mixture(kind, rows, sizes, dtype, device)
        near(mix_few_rows(*one), mix_few_rows_twin(*one.exactly()))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("sizes", [(1030, 3, 2, 1), (6, 1030, 3, 2)])
def test_long_rows_and_wide_experts_take_more_than_a_step(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    one = mixture("norm, residual", 1, sizes, dtype, device)
    near(mix_few_rows(*one), mix_few_rows_twin(*one.exactly()))


def test_the_formula_is_what_experts_make_that_are_sorted() -> None:
    one = mixture("biases", 3, SIZES[1], torch.float64, torch.device("cpu"))
    top_k, count = one.choice.experts.shape[1], one.gate_up.weight.shape[0]
    products = TorchProducts()
    order, offsets = products.sort(one.choice.experts, count)
    inward, outward = Route(offsets, order, times=top_k), Route(offsets, targets=order)
    both = products.grouped(one.rows, inward, PlainWeight(one.gate_up.weight), one.gate_up.bias)
    gate, up = both.chunk(2, -1)
    down = PlainWeight(one.down.weight)
    answers = products.grouped(gate * gate.sigmoid() * up, outward, down, one.down.bias)
    mixed = products.combine(answers.view(3, top_k, -1), one.choice.weights)
    torch.testing.assert_close(mix_few_rows_twin(*one), mixed)


def test_a_token_is_what_it_is_alone(device: torch.device) -> None:
    whole = mixture("norm, residual", MOST_ROWS, SIZES[1], torch.float32, device)
    together = mix_few_rows(*whole)
    for row in range(MOST_ROWS):
        only = slice(row, row + 1)
        norm, gate, onto = whole.fusion
        assert onto
        alone = whole._replace(
            rows=whole.rows[only],
            choice=Choice(*(part[only] for part in whole.choice)),
            fusion=Fusion(norm, gate, onto._replace(rows=onto.rows[only])),
        )
        assert torch.equal(mix_few_rows(*alone)[0], together[row])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_scores_are_of_normed_rows(dtype: torch.dtype, device: torch.device) -> None:
    for rows, inputs, experts in ((1, 5, 3), (MOST_ROWS, 1030, 9)):
        given = poisoned(rows, inputs, dtype, device)
        weight = poisoned(experts, inputs, torch.float32, device) * inputs**-0.5
        norm = RowNorm(torch.randn(inputs, device=device).to(dtype), EPS)
        bias = torch.randn(experts, device=device)
        scores = few_row_scores(given, weight, bias, norm)
        assert scores.dtype is torch.float32
        exact = RowNorm(norm.weight.double(), EPS)
        near(scores, few_row_scores_twin(given.double(), weight.double(), bias.double(), exact))


def test_nothing_is_made_of_nothing(device: torch.device) -> None:
    sizes, dtype = (8, 4, 3, 2), torch.float32
    one = mixture("alone", 2, sizes, dtype, device)
    none = one._replace(rows=one.rows[:0], choice=Choice(*(part[:0] for part in one.choice)))
    assert mix_few_rows(*none).shape == (0, 8)
    with pytest.raises(ValueError, match="5 rows: at most 4 are few"):
        mix_few_rows(*mixture("alone", 5, sizes, dtype, device))
    with pytest.raises(KeyError, match="tanh"):
        mix_few_rows(*one._replace(fusion=Fusion(gate=Gate("tanh"))))


def test_its_floor_is_the_weights_of_the_experts_that_are_used() -> None:
    floor = few_row_experts_floor(2, 15, (128, 1536, 2048), 2, 8)
    weights = 15 * 3 * 768 * 2048
    assert floor.bytes == 2 * (weights + 2 * 2 * 8 * 768 + 3 * 2 * 2048) + 2 * 8 * 12
    assert floor.operations == 2 * 2 * 8 * 3 * 768 * 2048


def test_a_compiler_reads_whole_vectors_and_adds_up_without_other_threads() -> None:
    told = compiled("engine.kernels.gpu.few_row_experts", COMPILED)
    for name in ("_few_row_gates", "_few_row_mixture"):
        assert told[name]["spilled"] == told[name]["exchanges_in_loops"] == 0
        assert told[name]["regroups_in_loops"] <= 8  # no vector is taken apart where it arrives
        assert told[name]["registers"] <= 128  # four programs of four warps to a multiprocessor


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_real_shapes(dtype: torch.dtype, device: torch.device) -> None:
    for kind in ("norm, residual", "biases, clamp"):
        for rows in (1, MOST_ROWS):
            one = mixture(kind, rows, (2048, 768, 32, 8), dtype, device)
            near(mix_few_rows(*one), mix_few_rows_twin(*one.exactly()))
