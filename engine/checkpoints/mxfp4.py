"""MXFP4 (OCP Microscaling Formats 1.0): 32 numbers of four bits share a power of two.

A number has a sign, two bits of exponent and one of mantissa; two of them share a byte, the
first in its low half. A scale is an exponent with a bias of 127.
"""

import torch
from torch import Tensor

BLOCK = 32
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SCALE_BIAS = 127


def dequantise(blocks: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """[.., rows, n, 16] bytes and [.., rows, n] scales to [.., rows, n * BLOCK] numbers.

    Every product is exact in bfloat16 and in float32.
    """
    values = torch.tensor([*_MAGNITUDES, *(-one for one in _MAGNITUDES)], dtype=torch.float32)
    pairs = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)  # [.., n, BLOCK]
    exponents = scales.to(torch.int32).unsqueeze(-1) - _SCALE_BIAS
    numbers = torch.ldexp(values.to(blocks.device)[pairs.int()], exponents)
    return numbers.flatten(-2).to(dtype)
