"""Maps floats to integer keys of the same order, packed with tokens so that ties are decided.

A float's bits, with all but the sign flipped if it is negative, compare like the float (as in
radix sorts: Terdiman 2000). Both zeros have one key, and NaN is the largest, as in torch.
"""

import triton
import triton.language as tl

LARGEST = tl.constexpr(0x7FFFFFFF)
SMALLEST = tl.constexpr(-0x80000000)
NOT_A_NUMBER = LARGEST
INFINITE = tl.constexpr(0x7F800000)
NOTHING = tl.constexpr(-0x7F800001)
"""The keys of NaN, of infinity and of minus infinity."""


@triton.jit
def key_of(x):
    """The int32 key of a float32."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, NOT_A_NUMBER, bits ^ (bits >> 31 & LARGEST))


@triton.jit
def value_of(key):
    """The float32 of an int32 key."""
    return (key ^ (key >> 31 & LARGEST)).to(tl.float32, bitcast=True)


@triton.jit
def packed(key, token):
    """An int64 of key and token; the largest has the largest key, then the smallest token."""
    return key.to(tl.int64) << 32 | (token ^ LARGEST).to(tl.int64)


@triton.jit
def token_of(pair):
    """The token of a packed pair."""
    return (pair & LARGEST).to(tl.int32) ^ LARGEST


@triton.jit
def key_in(pair):
    """The key of a packed pair."""
    return (pair >> 32).to(tl.int32)
