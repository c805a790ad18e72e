"""Floats as integers of the same order, and what follows from that: ties have one winner.

A float's bits, with all but the sign flipped where it is negative, compare as the float does
(as radix sorts have it: Terdiman 2000). Both zeros have one key, and no number is larger than
what is no number, as in torch.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(0x7FFFFFFF)
SMALLEST = tl.constexpr(-0x80000000)
NOT_A_NUMBER = LARGEST
INFINITE = tl.constexpr(0x7F800000)
NOTHING = tl.constexpr(-0x7F800001)
"""The keys of no number, of infinity and of minus infinity."""


@triton.jit
def key_of(x):
    """float32 to int32."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, NOT_A_NUMBER, bits ^ (bits >> 31 & LARGEST))


@triton.jit
def value_of(key):
    """int32 to float32: the other way."""
    return (key ^ (key >> 31 & LARGEST)).to(tl.float32, bitcast=True)


@triton.jit
def packed(key, token):
    """int64 of which the largest is the largest key's, and of these the smallest token's."""
    return key.to(tl.int64) << 32 | (token ^ LARGEST).to(tl.int64)


@triton.jit
def token_of(pair):
    """The token of what was packed."""
    return (pair & LARGEST).to(tl.int32) ^ LARGEST


@triton.jit
def key_in(pair):
    """The key of what was packed."""
    return (pair >> 32).to(tl.int32)
