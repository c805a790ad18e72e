"""Gumbel noise as defined in engine/sampling/noise.py, with the same bits on every device.

The bits are integers and equal everywhere. The last bit of the two logarithms may differ from
the CPU's, which changes a token if two scores are closer than that.
"""

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0x9E3779B9)
FIRST_FACTOR, SECOND_FACTOR = tl.constexpr(0x85EBCA6B), tl.constexpr(0xC2B2AE35)
CELL = tl.constexpr(2.0**-23)


@triton.jit
def noise_bits(tokens, low, high):
    """23 random bits for each int32 vocabulary entry, from the halves of a key (uint32)."""
    bits = _mixed(tokens.to(tl.uint32) * GOLDEN ^ low)
    return _mixed(bits ^ high) >> 9


@triton.jit
def gumbel(tokens, low, high):
    """Standard Gumbel variates for these vocabulary entries, float32."""
    uniform = (noise_bits(tokens, low, high).to(tl.float32) + 0.5) * CELL
    return -tl.log(-tl.log(uniform))


@triton.jit
def _mixed(bits):
    """MurmurHash3's 32-bit finaliser (Appleby)."""
    bits = (bits ^ bits >> 16) * FIRST_FACTOR
    bits = (bits ^ bits >> 13) * SECOND_FACTOR
    return bits ^ bits >> 16
