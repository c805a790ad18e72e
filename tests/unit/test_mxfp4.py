"""Four-bit blocks become the numbers that their bits say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoints.mxfp4 import BLOCK, dequantise


def said(bits: int, scale: int) -> float:
    """Sign, two bits of exponent, one of mantissa: the format's own words."""
    sign, exponent, mantissa = bits >> 3, bits >> 1 & 3, bits & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return (-1.0) ** sign * size * 2.0 ** (scale - 127)


@given(
    data=st.lists(st.binary(min_size=16, max_size=16), min_size=6, max_size=6),
    scales=st.lists(st.integers(90, 160), min_size=6, max_size=6),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_number_is_what_its_bits_say(
    dtype: torch.dtype, data: list[bytes], scales: list[int]
) -> None:
    blocks = torch.tensor([list(one) for one in data], dtype=torch.uint8).view(2, 3, 16)
    numbers = dequantise(blocks, torch.tensor(scales, dtype=torch.uint8).view(2, 3), dtype)
    assert (numbers.shape, numbers.dtype) == ((2, 3 * BLOCK), dtype)
    expected = [
        said(bits, scale)
        for one, scale in zip(data, scales, strict=True)
        for byte in one
        for bits in (byte & 15, byte >> 4)
    ]
    assert numbers.flatten().tolist() == expected
