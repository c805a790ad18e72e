"""Gumbel noise as engine/sampling/noise.py defines it: the same bits, whatever draws them.

The bits are integers and equal everywhere. Of the two logarithms the last bit may be another
than the CPU's, which changes a token where two scores lie closer than that.
"""

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0x9E3779B9)
FIRST_FACTOR, SECOND_FACTOR = tl.constexpr(0x85EBCA6B), tl.constexpr(0xC2B2AE35)
CELL = tl.constexpr(2.0**-23)


@triton.jit
def noise_bits(tokens, low, high):
    """int32 vocabulary entries and the halves of a key (uint32) to 23 bits of each entry."""
    bits = _mixed(tokens.to(tl.uint32) * GOLDEN ^ low)
    return _mixed(bits ^ high) >> 9


@triton.jit
def gumbel(tokens, low, high):
    """Standard Gumbel variates of these entries, float32."""
    uniform = (noise_bits(tokens, low, high).to(tl.float32) + 0.5) * CELL
    return -tl.log(-tl.log(uniform))


@triton.jit
def _mixed(bits):
    """MurmurHash3's 32-bit finaliser (Appleby)."""
    bits = (bits ^ bits >> 16) * FIRST_FACTOR
    bits = (bits ^ bits >> 13) * SECOND_FACTOR
    return bits ^ bits >> 16
