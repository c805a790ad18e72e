"""Rows rounded to 8 bits by the kernel are those of torch, number by number."""

import pytest
import torch
from torch import Tensor

from engine.kernels.gpu.rounding import LONGEST, quantize_rows, quantize_rows_floor
from engine.kernels.rows import quantize_rows_twin
from tests.kernels.attention_cases import FLOATS


def assert_same(rows: Tensor, group: int | None) -> None:
    ours, twin = quantize_rows(rows, group), quantize_rows_twin(rows, group)
    assert torch.equal(ours.values.float(), twin.values.float())  # -0 is 0
    assert torch.equal(ours.scales, twin.scales)
    assert ours.dtype is twin.dtype is rows.dtype


@pytest.mark.parametrize("group", [None, 16, 128])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 130), (2, 16), (5, 300)])
def test_rows_are_rounded_as_torch_does(
    rows: int, size: int, dtype: torch.dtype, group: int | None, device: torch.device
) -> None:
    wide = torch.randn(rows, size + 4, device=device) * 10 ** torch.randn(rows, 1).to(device)
    wide[:, size:] = torch.nan
    assert_same(wide.to(dtype)[:, :size], group)


def test_every_magnitude_is_rounded_as_torch_does(device: torch.device) -> None:
    """Any number of bfloat16 up to the largest: ties, and those below the normal ones."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    fits = every[every.float().abs() <= 448]
    fits = fits[: len(fits) // 127 * 127].view(-1, 127).to(device)
    whole = torch.cat((fits, torch.full((len(fits), 1), 448.0).to(fits)), 1)  # a scale of 1
    chosen = torch.randperm(len(whole))
    assert_same(whole[chosen], None)
    assert_same(whole[chosen], 128)


@pytest.mark.parametrize("group", [None, 128])
def test_a_row_longer_than_a_program_holds(group: int | None, device: torch.device) -> None:
    rows = torch.randn(2, 2 * LONGEST + 77, device=device)
    rows[0, -1], rows[1] = 1e3, 0
    assert_same(rows, group)


def test_the_floor_is_a_look_at_each_number_and_a_byte() -> None:
    assert quantize_rows_floor(64, 4096, 2).bytes == 64 * 4096 * 3 + 64 * 4
    assert quantize_rows_floor(64, 4096, 2, 128).bytes == 64 * 4096 * 3 + 64 * 32 * 4
    assert quantize_rows_floor(64, 4096, 2).operations == 3 * 64 * 4096


@pytest.mark.gpu
@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("rows", "size"), [(1, 4096), (64, 14336), (2048, 4096)])
def test_real_shapes(
    rows: int, size: int, dtype: torch.dtype, group: int | None, device: torch.device
) -> None:
    wide = torch.randn(rows, size, device=device) * 10 ** torch.randn(rows, 1).to(device)
    assert_same(wide.to(dtype), group)
