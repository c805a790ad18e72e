"""Norms and gates on a GPU are their formulas, and touch nothing beside their rows."""

import random

import pytest
import torch
from torch import Tensor

from engine.kernels.gpu.gates import ACTIVATIONS, gate_floor, gated, gated_twin
from engine.kernels.gpu.norms import (
    add_rms_norm,
    add_rms_norm_twin,
    norm_floor,
    rms_norm,
    rms_norm_twin,
)
from tests.kernels.ahead import compiled

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 0.01, torch.float16: 2e-3}
hardly_numbers = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy


def close(ours: Tensor, exact: Tensor) -> None:
    assert ours.dtype in TOLERANCE
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(
        ours.double(), exact, rtol=tolerance, atol=tolerance * float(exact.abs().max())
    )


def poisoned(rows: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[rows, size] random, among NaN that must not be read."""
    around = torch.full((rows, size + 7), torch.nan, device=device, dtype=dtype)
    around[:, 3 : 3 + size] = torch.randn(rows, size).to(device, dtype)
    return around[:, 3 : 3 + size]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "size"), [(1, 5), (3, 100), (7, 1030)])
def test_a_norm_reads_its_rows_and_rounds_once(
    rows: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = poisoned(rows, size, dtype, device)
    for kind in (dtype, torch.float32):
        weight = torch.randn(size).to(device, kind)
        exact = rms_norm_twin(x.double(), weight.double(), 1e-3)
        close(rms_norm(x, weight, 1e-3), exact)


def test_a_wide_weight_in_a_half_model_is_rounded_once(device: torch.device) -> None:
    """In float16: the interpreter cuts bfloat16 off where a GPU rounds."""
    x, weight = torch.randn(7, 1030, device=device).half(), torch.randn(1030, device=device)
    exact = rms_norm_twin(x.double(), weight.double(), 1e-3)
    wrong = (rms_norm(x, weight, 1e-3) != exact.half()).float().mean()
    twice = (rms_norm(x, torch.ones_like(weight), 1e-3).float() * weight).half()
    assert wrong < 0.02
    assert (twice != exact.half()).float().mean() > 0.1


def test_a_norm_over_heads_that_lie_among_others(device: torch.device) -> None:
    mixed, weight = torch.randn(600, 5, 24, device=device), torch.randn(24, device=device)
    mixed[:, 0], mixed[:, 4] = torch.nan, torch.nan
    keys = mixed[:, 1:4]
    close(rms_norm(keys, weight, 1e-5), rms_norm_twin(keys.double(), weight.double(), 1e-5))


@pytest.mark.parametrize("scale", [1.0, 0.22])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "size"), [(1, 3), (4, 130), (270, 9)])
def test_a_residual_is_added_rounded_and_normed(
    rows: int, size: int, dtype: torch.dtype, scale: float, device: torch.device
) -> None:
    x, residual = (poisoned(rows, size, dtype, device) for _ in range(2))
    weight = torch.randn(size, device=device)
    normed, added = add_rms_norm(x, residual, weight, 1e-5, scale)
    wanted, sum_ = add_rms_norm_twin(
        x.double(), residual.double(), weight.double(), 1e-5, scale
    )
    close(added, sum_)
    close(normed, wanted)
    close(normed, rms_norm_twin(added.double(), weight.double(), 1e-5))


@hardly_numbers
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 1030)])
def test_a_gate_is_its_formula(
    rows: int, width: int, name: str, dtype: torch.dtype, device: torch.device
) -> None:
    both = 3 * poisoned(rows, 2 * width, dtype, device)
    close(gated(both, name), gated_twin(both.double(), name))


@hardly_numbers
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gate_of_what_is_hardly_a_number(name: str, device: torch.device) -> None:
    gate = [3e38, -3e38, 1e9, -1e9, 95.0, -95.0, torch.nan]
    row = torch.tensor([gate], device=device)
    both = torch.cat((row, torch.ones_like(row)), -1)
    exact = gated_twin(both.double(), name).float()
    torch.testing.assert_close(gated(both, name), exact, equal_nan=True)


def test_no_rows_are_no_launch(device: torch.device) -> None:
    nothing, weight = torch.empty(0, 6, device=device), torch.ones(6, device=device)
    assert rms_norm(nothing, weight, 1e-5).shape == (0, 6)
    assert add_rms_norm(nothing, nothing, weight, 1e-5)[0].shape == (0, 6)
    assert gated(nothing, "silu").shape == (0, 3)
    with pytest.raises(KeyError):
        gated(nothing, "relu")


def test_floors_count_each_number_once() -> None:
    assert norm_floor(64, 4096, 2).bytes == 2 * 64 * 4096 * 2 + 4096 * 2
    assert norm_floor(64, 4096, 2, residual=True).bytes == 4 * 64 * 4096 * 2 + 4096 * 2
    assert gate_floor(64, 14336, 2).bytes == 3 * 64 * 14336 * 2


def test_they_compile_for_hopper_and_spill_nothing() -> None:
    rows = "torch.ones(300, 8, 128, dtype=torch.bfloat16)"
    found = compiled(
        "engine.kernels.gpu.norms",
        f"rms_norm({rows}, torch.ones(128), 1e-5)",
        "rms_norm(torch.ones(3, 8192), torch.ones(8192), 1e-5)",
        f"add_rms_norm({rows}[:, 0], {rows}[:, 0], torch.ones(128), 1e-5, 0.5)",
        "add_rms_norm(torch.ones(2, 8192), torch.ones(2, 8192), torch.ones(8192), 1e-5)",
    )
    found |= compiled(
        "engine.kernels.gpu.gates",
        "[gated(torch.ones(3, 300, dtype=torch.bfloat16), one) for one in ACTIVATIONS]",
    )
    assert sorted(found) == ["_add_norm", "_gate", "_norm"]
    assert not any(one["spilled"] for one in found.values())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_real_shapes(dtype: torch.dtype, device: torch.device) -> None:
    rows = random.randint(1, 8192)
    x, residual = (torch.randn(rows, 4096, device=device, dtype=dtype) for _ in range(2))
    weight = torch.randn(4096, device=device, dtype=dtype)
    normed, added = add_rms_norm(x, residual, weight, 1e-5)
    close(normed, rms_norm_twin(added.double(), weight.double(), 1e-5))
    heads = torch.randn(rows, 48, 128, device=device, dtype=dtype)[:, 8:40]
    close(
        rms_norm(heads, weight[:128], 1e-5),
        rms_norm_twin(heads.double(), weight[:128].double(), 1e-5),
    )
    both = torch.randn(rows, 2 * 14336, device=device, dtype=dtype)
    for name in ACTIVATIONS:
        close(gated(both, name), gated_twin(both.double(), name))
