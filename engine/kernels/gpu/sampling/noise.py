"""Gumbel noise as defined in engine/sampling/noise.py, with the same bits on every device.

The bits are integers and equal everywhere. The last bits of the two logarithms may differ from
the CPU's, which changes a token if two scores are closer than that.

A GPU's own logarithm has an absolute error near 1, of 2^-22. The tokens that win in a large
vocabulary come from there: of 150,000 variates -log(u) the smallest is some 7e-6, which would
be wrong by a fiftieth. So near 1 it is a series.
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
    return -tl.log(exponential(noise_bits(tokens, low, high)))


@triton.jit
def exponential(bits):
    """-log(u) of the midpoint u of cell `bits` of 2^23; float32, to some last bits everywhere.

    For u from 1/2 on, 2 atanh(s) with s = (1 - u) / (1 + u), whose series of eight terms is
    exact to 2^-26. 1 - u is exact.
    """
    uniform = (bits.to(tl.float32) + 0.5) * CELL
    rest = 1.0 - uniform
    ratio = rest / (2.0 - rest)
    square = ratio * ratio
    series = tl.full(uniform.shape, 1.0 / 15, tl.float32)
    for term in tl.static_range(1, 8):
        series = series * square + 1.0 / (15 - 2 * term)
    return tl.where(uniform < 0.5, -tl.log(uniform), 2.0 * ratio * series)


@triton.jit
def _mixed(bits):
    """MurmurHash3's 32-bit finaliser (Appleby)."""
    bits = (bits ^ bits >> 16) * FIRST_FACTOR
    bits = (bits ^ bits >> 13) * SECOND_FACTOR
    return bits ^ bits >> 16
