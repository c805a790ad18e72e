"""Numbers of four bits become floats exactly, and by few instructions."""

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels.gpu.product_kernels import raised, raised_middle
from engine.kernels.gpu.tiles import FORMATS
from tests.kernels.ahead import compiled
from tests.kernels.test_loops_ahead import PRODUCT, WEIGHTS


@triton.jit  # type: ignore[untyped-decorator]
def _raise(numbers, above, middle, dtype: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    places = tl.arange(0, 16)
    tl.store(above + places, raised(tl.load(numbers + places), dtype))
    tl.store(middle + tl.zeros((1, 1), tl.int32), raised_middle(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_four_bits_become_numbers_exactly(dtype: torch.dtype, device: torch.device) -> None:
    """All of them less all zeros, in each dtype that a GPU multiplies."""
    numbers = torch.arange(16, dtype=torch.uint8, device=device)
    above, middle = (torch.empty(count, dtype=dtype, device=device) for count in (16, 1))
    _raise[(1,)](numbers, above, middle, dtype=FORMATS[dtype])
    exact = numbers.to(dtype)
    assert torch.equal(above - middle, exact - 8)
    assert torch.equal(above - above[:, None], exact - exact[:, None])


def test_few_rows_take_few_instructions() -> None:
    """Of each warp, for 4 KB of weights: a batch of few rows is bound by them."""
    without = WEIGHTS["int4"].replace("torch.empty(32, 8, 2048, dtype=torch.uint8)", "None")
    calls = [PRODUCT.format(weight=weight, rows=32) for weight in (WEIGHTS["int4"], without)]
    told = compiled("engine.kernels.gpu.products", *calls)["multiply_tiles"]
    assert told["spilled"] == 0
    assert told["main"] <= 420
