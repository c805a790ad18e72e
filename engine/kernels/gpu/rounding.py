"""Activations quantized to fp8 (e4m3), before they are multiplied with fp8 weights.

Norms and gates quantize their own output (`store_quantized`); other rows take an extra launch,
`quantize_rows`. Twin: engine/kernels/rows.py:quantize_rows_twin. Floor: `quantize_rows_floor`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.rows import E4M3, E4M3_MAX, LEAST_SCALE, QuantizedRows

SCALE_BYTES = 4
LONGEST = 8192  # numbers of a row that a program holds at once
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
GROUPS = 8  # of a row, per program


@triton.jit
def e4m3(x):
    """Round to the nearest fp8 number, ties to even; as the largest one beyond that.

    A GPU does it in one instruction for two numbers. For Triton's interpreter, which rounds
    otherwise, it is written out; casting is then exact.
    """
    if INTERPRETED:
        sign = x.to(tl.int32, bitcast=True) & -0x80000000
        x = tl.minimum(tl.abs(x), 448.0)
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000  # 3 bits of mantissa are left
        normal = bits.to(tl.float32, bitcast=True)
        small = (x + 24576.0) - 24576.0  # 1.5 * 2 ** 14: in steps of 2 ** -9
        x = tl.where(x < 0.015625, small, normal)
        x = (x.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    return x.to(tl.float8e4nv)


@triton.jit
def rounded(x, memory, FP8: tl.constexpr):
    """Numbers in the type of a memory's, which is fp8 if FP8."""
    return e4m3(x.to(tl.float32)) if FP8 else x.to(memory.dtype.element_ty)


@triton.jit
def sizes_of(x):
    """The magnitude of each number, and whether it is NaN."""
    number = x == x
    return tl.where(number, tl.abs(x), 0.0), 1 - number.to(tl.int32)


@triton.jit
def scale_of(largest, spoiled, MOST: tl.constexpr, LEAST: tl.constexpr):
    """A group's scale; NaN if the group has a NaN, which quantized numbers would hide."""
    scale = tl.maximum(tl.div_rn(largest, MOST), LEAST)
    return tl.where(spoiled > 0, float("nan"), scale)


@triton.jit
def _round_whole(
    rows, values, scales, size, row_stride,
    MOST: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    source, target = rows + row.to(tl.int64) * row_stride, values + row.to(tl.int64) * size
    within = tl.arange(0, BLOCK)
    largest, spoiled = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.int32)
    for first in range(0, size, BLOCK):
        x = tl.load(source + first + within, mask=first + within < size, other=0.0)
        size_of, none = sizes_of(x.to(tl.float32))
        largest, spoiled = tl.maximum(largest, size_of), spoiled + none
    scale = scale_of(tl.max(largest, 0), tl.sum(spoiled, 0), MOST, LEAST)
    tl.store(scales + row, scale)
    for first in range(0, size, BLOCK):
        there = first + within < size
        x = tl.load(source + first + within, mask=there, other=0.0).to(tl.float32)
        tl.store(target + first + within, e4m3(tl.div_rn(x, scale)), mask=there)


@triton.jit
def store_quantized(
    made, row, group, rows, size, values, scales,
    MOST: tl.constexpr, LEAST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Quantize and store `made` [ROWS, GROUPS, GROUP] float32: groups `group` of each `row`.

    Each group is at least partly below `size`; numbers beyond it must be zeros.
    """
    size_of, none = sizes_of(made)
    scale = scale_of(tl.max(size_of, 2), tl.sum(none, 2), MOST, LEAST)
    there = (row < rows)[:, None] & (group * GROUP < size)[None, :]
    tl.store(scales + group.to(tl.int64)[None, :] * rows + row[:, None], scale, mask=there)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    fitted = e4m3(tl.div_rn(made, scale[:, :, None]))
    place = values + row.to(tl.int64)[:, None, None] * size + at[None, :, :]
    tl.store(place, fitted, mask=there[:, :, None] & (at < size)[None, :, :])


@triton.jit(do_not_specialize=["count"])
def _round_groups(
    rows, values, scales, count, size, row_stride,
    MOST: tl.constexpr, LEAST: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) + tl.arange(0, 1)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = (group[:, None] * GROUP + tl.arange(0, GROUP)[None, :])[None, :, :]
    place = rows + row.to(tl.int64)[:, None, None] * row_stride + at
    x = tl.load(place, mask=at < size, other=0.0).to(tl.float32)
    store_quantized(x, row, group, count, size, values, scales, MOST, LEAST, GROUP)


def empty_quantized(rows: int, size: int, group: int | None, like: Tensor) -> QuantizedRows:
    """Uninitialized QuantizedRows [rows, size], for products in the dtype of `like`.

    Scales are [rows, groups], with those of one group contiguous.
    """
    groups = 1 if group is None else -(-size // group)
    values = torch.empty((rows, size), dtype=E4M3, device=like.device)
    scales = torch.empty((groups, rows), dtype=torch.float32, device=like.device)
    return QuantizedRows(values, scales.T, like.dtype, group)


def quantize_rows(rows: Tensor, group: int | None) -> QuantizedRows:
    """Quantize [rows, size], with a float32 scale for each row, or each `group` numbers of it.

    Its twin is `quantize_rows_twin` in engine/kernels/rows.py.
    """
    assert rows.stride(1) == 1, "rows lie whole"
    count, size = rows.shape
    made = empty_quantized(count, size, group, rows)
    if not count:
        return made
    if group is None:
        block = min(triton.next_power_of_2(size), LONGEST)
        _round_whole[(count,)](
            rows, made.values, made.scales, size, rows.stride(0),
            MOST=E4M3_MAX, LEAST=LEAST_SCALE, BLOCK=block, num_warps=8,
        )  # fmt: skip
    else:
        _round_groups[(count, triton.cdiv(size, group * GROUPS))](
            rows, made.values, made.scales, count, size, rows.stride(0),
            MOST=E4M3_MAX, LEAST=LEAST_SCALE, GROUP=group, GROUPS=GROUPS,
        )  # fmt: skip
    return made


def quantize_rows_floor(rows: int, size: int, itemsize: int, group: int | None = None) -> Floor:
    """Each number is read once, and written in one byte; a float32 scale for each group.

    A number is compared with the largest, divided, and rounded: 3 operations.
    """
    scales = rows * (1 if group is None else -(-size // group))
    moved = rows * size * (itemsize + 1) + scales * SCALE_BYTES
    return Floor(bytes=moved, operations=3 * rows * size)
