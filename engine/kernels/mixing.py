"""Random bits computed from a counter, the same on every device.

They come from the finaliser of MurmurHash3 (Appleby): a good mixer, not a cipher.
"""

import torch
from torch import Tensor

MASK = 0xFFFF_FFFF
GOLDEN = 0x9E37_79B9
FIRST_FACTOR, SECOND_FACTOR = 0x85EB_CA6B, 0xC2B2_AE35
UNIFORM_BITS = 23  # the midpoints of 2^23 cells are exact in float32, and never 0 or 1


def mix(bits: Tensor, spare: Tensor) -> None:
    """The 32-bit finaliser, in place. It relies on products of int32 wrapping around."""
    bits ^= _shifted(bits, 16, spare)
    bits *= signed(FIRST_FACTOR)
    bits ^= _shifted(bits, 13, spare)
    bits *= signed(SECOND_FACTOR)
    bits ^= _shifted(bits, 16, spare)


def uniform(bits: Tensor) -> Tensor:
    """Mixed int32 `bits` to float32 between 0 and 1, both excluded; overwrites `bits`."""
    _shifted(bits, 32 - UNIFORM_BITS, bits)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-UNIFORM_BITS)


def signed(word: int) -> int:
    """32 unsigned bits as an int32."""
    return word - (word >> 31 << 32)


def _shifted(bits: Tensor, count: int, out: Tensor) -> Tensor:
    """A logical shift to the right: zeros come in from the left."""
    torch.bitwise_right_shift(bits, count, out=out)
    return out.bitwise_and_(MASK >> count)
