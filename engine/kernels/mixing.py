"""Random bits that follow from a counter, the same on every device.

They come from the finaliser of MurmurHash3 (Appleby): a good mixer, not a cipher.
"""

import torch
from torch import Tensor

MASK = 0xFFFF_FFFF
GOLDEN = 0x9E37_79B9
FIRST_FACTOR, SECOND_FACTOR = 0x85EB_CA6B, 0xC2B2_AE35
UNIFORM_BITS = 23  # the midpoints of 2^23 cells are exact in float32, and never 0 or 1


def mix(bits: Tensor, spare: Tensor) -> None:
    """The 32-bit finaliser, in place. Products of int32 lanes wrap, as it wants."""
    bits ^= _shifted(bits, 16, spare)
    bits *= signed(FIRST_FACTOR)
    bits ^= _shifted(bits, 13, spare)
    bits *= signed(SECOND_FACTOR)
    bits ^= _shifted(bits, 16, spare)


def uniform(bits: Tensor) -> Tensor:
    """Mixed int32 `bits`, which are spoilt, to float32 between 0 and 1, without either."""
    _shifted(bits, 32 - UNIFORM_BITS, bits)
    return bits.to(torch.float32).add_(0.5).mul_(2.0**-UNIFORM_BITS)


def signed(word: int) -> int:
    """32 bits as int32 has them."""
    return word - (word >> 31 << 32)


def _shifted(bits: Tensor, count: int, out: Tensor) -> Tensor:
    """To the right, zeros from the left."""
    torch.bitwise_right_shift(bits, count, out=out)
    return out.bitwise_and_(MASK >> count)
