"""Rows quantized to e4m3 in registers, four numbers to a word, for products of few rows.

Triton keeps numbers of 8 bits in a register each, and pairs them again for each conversion. In
words they take a quarter of the registers, and a number is widened in one and a half
instructions. The numbers are those of rounding.py; there are no branches, as some of this
happens in a loop.

Triton's interpreter knows no inline assembly, and its fma rounds twice; for it both are written
out.
"""

import triton
import triton.language as tl

from engine.kernels.gpu.rounding import INTERPRETED, e4m3

UNPACK = tl.constexpr("""{
    .reg .b16 low, high, even, odd;
    .reg .b32 pair;
    mov.b32 {low, high}, $4;
    cvt.rn.f16x2.e4m3x2 pair, low;
    mov.b32 {even, odd}, pair;
    cvt.f32.f16 $0, even;
    cvt.f32.f16 $1, odd;
    cvt.rn.f16x2.e4m3x2 pair, high;
    mov.b32 {even, odd}, pair;
    cvt.f32.f16 $2, even;
    cvt.f32.f16 $3, odd;
}""")
"""A word to four float32, the lowest byte first."""
PACK = tl.constexpr("""{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
}""")
"""Four float32 to a word, likewise."""


@triton.jit
def unpacked(words):
    """[count, size] words to [count, 4 * size] float32."""
    count: tl.constexpr = words.shape[0]
    size: tl.constexpr = words.shape[1]
    if INTERPRETED:
        first, second = _byte(words, 0), _byte(words, 8)
        third, fourth = _byte(words, 16), _byte(words, 24)
    else:
        first, second, third, fourth = tl.inline_asm_elementwise(
            UNPACK, "=f,=f,=f,=f,r", [words],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    both = tl.join(tl.join(first, third), tl.join(second, fourth))
    return tl.reshape(both, (count, 4 * size))


@triton.jit
def _byte(words, shift: tl.constexpr):
    """8 bits of each word, widened."""
    return (words >> shift).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def packed(x):
    """[1, size] float32, rounded to e4m3, to [1, size / 4] words."""
    size: tl.constexpr = x.shape[1]
    even, odd = tl.split(tl.reshape(x, (1, size // 4, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    if INTERPRETED:
        words = _bits(first) | _bits(second) << 8 | _bits(third) << 16 | _bits(fourth) << 24
    else:
        words = tl.inline_asm_elementwise(
            PACK, "=r,f,f,f,f", [first, second, third, fourth],
            dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    return words


@triton.jit
def _bits(x):
    """Each number rounded to e4m3, as the lowest 8 bits of a word."""
    return e4m3(x).to(tl.uint8, bitcast=True).to(tl.int32)


@triton.jit
def larger(one, other):
    """The larger one; NaN if either is."""
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def quotient(x, divisor, inverse):
    """x / divisor, given 1 / divisor.

    The product is corrected by its remainder, so that it is rounded as a division rounds.
    """
    if INTERPRETED:
        made = tl.div_rn(x, divisor)
    else:
        rough = x * inverse
        made = tl.fma(tl.fma(-rough, divisor, x), inverse, rough)
    return made


@triton.jit
def scale_for(largest, MOST: tl.constexpr, LEAST: tl.constexpr):
    """The scale for a `largest` magnitude, which is NaN if a number is; see `scale_of`."""
    return larger(quotient(largest, MOST, 1.0 / MOST), LEAST)


@triton.jit
def packed_groups(
    x, VECTOR: tl.constexpr, GROUP: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr
):
    """Quantize [1, size] with a scale for each GROUP numbers: words, and [1, size / VECTOR]
    scales, one for each vector.
    """
    size: tl.constexpr = x.shape[1]
    vectors: tl.constexpr = size // VECTOR
    by_vector = tl.reshape(x, (1, vectors, VECTOR))
    largest = tl.reduce(tl.abs(by_vector), 2, larger)
    grouped = tl.reshape(largest, (1, size // GROUP, GROUP // VECTOR))
    largest = tl.reduce(grouped, 2, larger, keep_dims=True)
    largest = tl.reshape(tl.broadcast_to(largest, grouped.shape), (1, vectors))
    scale = scale_for(largest, MOST, LEAST)
    spread = scale[:, :, None]
    words = packed(tl.reshape(quotient(by_vector, spread, 1.0 / spread), (1, size)))
    return words, scale


@triton.jit
def row_facts(
    x, norm, rows, stride, inputs, eps, ROWS: tl.constexpr, GROUP: tl.constexpr,
    WIDE: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """For each row what `_facts` finds; missing rows are read as the last one."""
    found = ()
    for row in tl.static_range(ROWS):
        at_row = x + tl.cast(tl.minimum(row, rows - 1), tl.int64) * stride
        found += (_facts(at_row, norm, inputs, eps, GROUP, WIDE, MOST, LEAST),)  # type: ignore[assignment]
    return found


@triton.jit
def _facts(
    at_row, norm, inputs, eps,
    GROUP: tl.constexpr, WIDE: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Of a row: the norm's factor, and the scale of what is quantized with its reciprocal.

    In one pass: of the normed numbers only the largest is made for this.
    """
    factor, scale, within = 1.0, 1.0, tl.arange(0, WIDE)
    squares, largest = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
    if norm is not None or GROUP is None:
        for first in range(0, inputs, WIDE):
            at = first + within
            read = tl.load(at_row + at, mask=at < inputs, other=0.0).to(tl.float32)
            if norm is not None:
                squares += read * read
                read *= tl.load(norm + at, mask=at < inputs, other=0.0).to(tl.float32)
            largest = larger(largest, tl.abs(read))
        if norm is not None:
            factor = 1.0 / tl.sqrt_rn(tl.sum(squares, 0) / inputs + eps)
        if GROUP is None:
            most = tl.reduce(largest, 0, larger) * factor
            scale = scale_for(most.to(at_row.dtype.element_ty).to(tl.float32), MOST, LEAST)
    return factor, scale, 1.0 / scale


@triton.jit
def held_rows(
    x, norm, facts, rows, stride, inputs,
    STEPS: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, VECTOR: tl.constexpr,
    GROUP: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """For each step what `fitted` makes."""
    held, span = (), CHUNKS * VECTOR
    for step in tl.static_range(STEPS):
        held += (
            fitted(
                x, norm, facts, step * span, rows, stride, inputs,
                ROWS, CHUNKS, VECTOR, GROUP, MOST, LEAST,
            ),
        )  # type: ignore[assignment]  # fmt: skip
    return held


@triton.jit
def fitted(
    x, norm, facts, first, rows, stride, inputs, ROWS: tl.constexpr, CHUNKS: tl.constexpr,
    VECTOR: tl.constexpr, GROUP: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    """Of each row, a step's numbers in words of e4m3, and with groups each thread's scale."""
    made = ()
    normer = _part(norm, first, inputs, CHUNKS, VECTOR) if norm is not None else 1.0
    for row in tl.static_range(ROWS):
        at_row = x + tl.cast(tl.minimum(row, rows - 1), tl.int64) * stride
        given = _part(at_row, first, inputs, CHUNKS, VECTOR)
        if norm is not None:
            given = (given * facts[row][0] * normer).to(x.dtype.element_ty).to(tl.float32)
        if GROUP is None:
            made += ((packed(quotient(given, facts[row][1], facts[row][2])), 1.0),)  # type: ignore[assignment]
        else:
            made += (packed_groups(given, VECTOR, GROUP, MOST, LEAST),)  # type: ignore[assignment]
    return made


@triton.jit
def _part(at, first, inputs, CHUNKS: tl.constexpr, VECTOR: tl.constexpr):
    """Load [1, CHUNKS * VECTOR] of a row or norm as float32; each thread what it multiplies.

    In two halves: of 16 bits, 8 numbers are all that a thread loads at once.
    """
    half: tl.constexpr = VECTOR // 2
    place = first + tl.arange(0, CHUNKS)[:, None] * VECTOR + tl.arange(0, half)[None, :]
    low = tl.load(at + place, mask=place < inputs, other=0.0)
    high = tl.load(at + place + half, mask=place + half < inputs, other=0.0)
    both = tl.permute(tl.join(low, high), (0, 2, 1))
    return tl.reshape(both, (1, CHUNKS * VECTOR)).to(tl.float32)
