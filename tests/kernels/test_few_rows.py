"""Products of few rows are their formula, whatever stands around them."""

import pytest
import torch
from torch import Tensor

from engine.kernels.fusion import Fusion, Gate, Residual, RowNorm
from engine.kernels.gpu.few_row_sums import numbers_of_word
from engine.kernels.gpu.few_rows import MOST_ROWS, few_rows, few_rows_floor, few_rows_twin
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.products import TorchProducts
from tests.kernels.ahead import compiled
from tests.kernels.test_pointwise import TOLERANCE, poisoned

EPS, SCALE = 1e-3, 0.5
KINDS = (
    "alone",
    "norm",
    "wide norm",
    "residual",
    "gate",
    "clamped gate",
    "usual clamp",
    "norm, gate, residual",
)
SIZES = [(5, 3), (1030, 23), (2049, 8)]  # inputs; outputs, or gates
REGROUPS = 5 * MOST_ROWS  # of rows that are widened
COMPILED = """
from engine.kernels.fusion import Gate, Residual, RowNorm
for rows in (1, 2, 4):
    for inputs, outputs, around in (
        (4096, 6144, Fusion(RowNorm(torch.ones(4096).bfloat16(), 1e-5))),
        (4096, 28672, Fusion(RowNorm(torch.ones(4096).bfloat16(), 1e-5), Gate("silu"))),
        (14336, 4096, Fusion(residual=Residual(torch.ones(rows, 4096).bfloat16(), 1.0))),
    ):
        given = torch.ones(rows, inputs).bfloat16(), torch.empty(outputs, inputs).bfloat16()
        few_rows(*given, None, around)
"""


def around(
    kind: str, rows: int, inputs: int, width: int, dtype: torch.dtype, device: torch.device
) -> Fusion:
    """What a `kind` names, with numbers of its own; residuals lie among NaN."""
    norm, gate, onto = None, None, None
    if "norm" in kind:
        wide = torch.float32 if kind == "wide norm" else dtype
        norm = RowNorm(torch.randn(inputs, device=device).to(wide), EPS)
    if "gate" in kind:
        gate = Gate("clamped_swiglu", (1.7, 0.8)) if "clamped" in kind else Gate("silu")
    if kind == "usual clamp":
        gate = Gate("clamped_swiglu")
    if "residual" in kind:
        onto = Residual(poisoned(rows, width, dtype, device), SCALE)
    return Fusion(norm, gate, onto)


def near(answer: Tensor, exact: Tensor) -> None:
    """Rounded up to three times: as a product, behind a gate, and once it is added."""
    tolerance = 3 * TOLERANCE[answer.dtype]
    bound = tolerance * float(exact.abs().max())
    torch.testing.assert_close(answer.double(), exact, rtol=tolerance, atol=bound)


def exactly(one: Fusion) -> Fusion:
    norm, gate, onto = one
    return Fusion(
        norm and norm._replace(weight=norm.weight.double()),
        gate,
        onto and onto._replace(rows=onto.rows.double()),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("inputs", "width"), SIZES)
def test_it_is_the_formula(
    inputs: int, width: int, dtype: torch.dtype, kind: str, device: torch.device
) -> None:
    outputs = 2 * width if "gate" in kind or "clamp" in kind else width
    for rows in (1, 2, 3, MOST_ROWS):
        given = poisoned(rows, inputs, dtype, device)
        weight = poisoned(outputs, inputs, dtype, device) * inputs**-0.5
        bias = torch.randn(outputs, device=device).to(dtype) if rows % 2 else None
        beside = around(kind, rows, inputs, width, dtype, device)
        answer = few_rows(given, weight, bias, beside)
        doubled = (given.double(), weight.double(), None if bias is None else bias.double())
        near(answer, few_rows_twin(*doubled, exactly(beside)))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("inputs", "experts"), [(5, 3), (1030, 24), (2049, 7)])
def test_a_router_is_as_exact_as_its_weight(
    inputs: int, experts: int, dtype: torch.dtype, device: torch.device
) -> None:
    for rows in (1, 2, 3, MOST_ROWS):
        given = poisoned(rows, inputs, dtype, device)
        weight = poisoned(experts, inputs, torch.float32, device) * inputs**-0.5
        bias = torch.randn(experts, device=device) if rows % 2 else None
        scores = TritonProducts().score(given, weight, bias)
        assert scores.dtype is torch.float32
        doubled = (given.double(), weight.double(), None if bias is None else bias.double())
        near(scores, TorchProducts().score(*doubled))


def test_a_row_is_what_it_is_alone(device: torch.device) -> None:
    """It is summed in the same order, whoever is beside it. To the bit in the interpreter;
    compiled for another number of rows, another product may be fused with its sum.
    """
    away = 1e-4 if device.type == "cuda" else 0
    weight = torch.randn(10, 1500, device=device)
    given = torch.randn(MOST_ROWS, 1500, device=device)
    norm = RowNorm(torch.randn(1500, device=device), EPS)
    together = few_rows(given, weight, None, Fusion(norm))
    for rows in range(1, MOST_ROWS):
        apart = [few_rows(part, weight, None, Fusion(norm)) for part in given.split(rows)]
        torch.testing.assert_close(torch.cat(apart), together, rtol=0, atol=away)


def test_a_product_is_rounded_before_its_gate_and_before_it_is_added(
    device: torch.device,
) -> None:
    """As it is where each has a launch of its own. In float16: the interpreter cuts bfloat16
    off where a GPU rounds.
    """
    half = torch.float16
    narrow = torch.ones(1, 1, device=device).to(half), torch.ones(2, 1, device=device).to(half)
    tail = torch.full((2,), 2.0**-11 + 2.0**-20, device=device).to(half)
    onto = Residual(torch.full((1, 2), -1.0, device=device).to(half), 1.0)
    added = few_rows(*narrow, tail, Fusion(residual=onto))
    assert float(added[0, 0]) == 2.0**-10
    gated = few_rows(*narrow, tail, Fusion(gate=Gate("silu")))
    once = torch.tensor(1 + 2.0**-10, dtype=torch.float64)
    assert gated[0, 0] == (once * once.sigmoid() * once).to(half)
    both = few_rows(*narrow, tail, Fusion(gate=Gate("silu"), residual=Residual(-gated, 1.0)))
    assert both[0, 0] == 0


def test_nothing_is_made_of_nothing(device: torch.device) -> None:
    empty, weight = torch.empty(0, 8, device=device), torch.randn(4, 8, device=device)
    assert few_rows(empty, weight).shape == (0, 4)
    with pytest.raises(ValueError, match="5 rows: at most 4 are few"):
        few_rows(torch.randn(5, 8, device=device), weight)
    with pytest.raises(KeyError, match="tanh"):
        few_rows(weight[:1], weight, None, Fusion(gate=Gate("tanh")))


def test_its_floor_is_its_weight() -> None:
    floor = few_rows_floor(2, 28672, 4096, 2, gate=True)
    assert floor.bytes == 2 * (28672 * 4096 + 2 * (4096 + 14336))
    assert floor.operations == 2 * 2 * 28672 * 4096
    assert few_rows_floor(1, 4, 8, 2, onto=True).bytes == 2 * (32 + 8 + 4 + 4)


def test_weights_are_loaded_in_words_where_all_of_them_are_whole() -> None:
    halves, bytes_ = torch.empty(1, 6, 12).half(), torch.empty(6, 12).to(torch.float8_e4m3fn)
    assert numbers_of_word(halves) == numbers_of_word(halves[..., 2:]) == 2
    assert numbers_of_word(bytes_) == numbers_of_word(bytes_[:, 4:]) == 4
    for odd in (halves[..., 1:], halves[..., :11], torch.empty(3, 5).half()[:, :4]):
        assert numbers_of_word(odd) == 1
    for odd in (bytes_[:, 2:10], bytes_[:, :10], torch.empty(99, dtype=torch.uint8)[1:9]):
        assert numbers_of_word(odd) == 1
    assert numbers_of_word(torch.empty(2, 4)) == 1


def test_a_compiler_reads_whole_vectors_and_adds_up_without_other_threads() -> None:
    """An exchange in the loop would cost more than the products do."""
    few = compiled("engine.kernels.gpu.few_rows", COMPILED)["_few_rows"]
    assert few["spilled"] == few["exchanges_in_loops"] == 0
    assert few["narrow_loads"] <= MOST_ROWS  # of the residual, behind the loop
    assert few["regroups_in_loops"] <= REGROUPS  # no vector is taken apart where it arrives
    assert few["registers"] <= 168  # three programs of four warps to a multiprocessor


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_real_shapes(dtype: torch.dtype, device: torch.device) -> None:
    for kind, inputs, width in (("norm", 4096, 6144), ("norm, gate", 4096, 14336)):
        outputs = 2 * width if "gate" in kind else width
        weight = torch.randn(outputs, inputs, device=device, dtype=dtype) * inputs**-0.5
        for rows in (1, MOST_ROWS):
            given = torch.randn(rows, inputs, device=device, dtype=dtype)
            beside = around(kind, rows, inputs, width, dtype, device)
            answer = few_rows(given, weight, None, beside)
            near(answer, few_rows_twin(given.double(), weight.double(), None, exactly(beside)))


def test_twins_answer_in_the_dtype_of_rows() -> None:
    rows, weight = torch.randn(2, 6).bfloat16(), torch.randn(3, 6).bfloat16()
    answer: Tensor = few_rows_twin(rows, weight)
    torch.testing.assert_close(answer, (rows.float() @ weight.float().T).bfloat16())
