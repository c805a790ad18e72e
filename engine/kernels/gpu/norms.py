"""RMS norms on a GPU, fused with the addition of the residual, if there is one.

A row is computed in float32 and rounded once, whatever the weight's dtype, because a float32
weight in a model of half precision requires that (engine/models/norm.py). A norm is bound by
memory: see `norm_floor`.

For a product with fp8 weights the same kernels quantize their output (`norm_quantized`), with
the same bits as `quantize_rows`. For a router and its experts they write the rows both whole
and quantized (`norm_dual`).
"""

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.rounding import empty_quantized, store_quantized
from engine.kernels.rows import E4M3_MAX, LEAST_SCALE, DualRows, QuantizedRows

NUMBERS_AT_ONCE = 2048  # per program: short rows, such as heads, share one
NUMBERS_OF_A_WARP = 512
FEW_ROWS = 1024


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension (Zhang and Sennrich 2019), in x's dtype.

    `x` [tokens, size] or [tokens, heads, size]: the last dimension must be contiguous, other
    strides are arbitrary, so heads of a fused product need no copy. `weight` [size] of any
    float dtype.
    """
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_norm(x, weight, eps, normed)
    return normed


def norm_quantized(x: Tensor, weight: Tensor, eps: float, group: int | None) -> QuantizedRows:
    """`quantize_rows` of rms_norm, in one launch: `x` [tokens, size]."""
    made = empty_quantized(len(x), x.shape[1], group, x)
    _launch_norm(x, weight, eps, None, made, group)
    return made


def norm_dual(x: Tensor, weight: Tensor, eps: float, group: int | None) -> DualRows:
    """rms_norm and `quantize_rows` of it in one launch: `x` [tokens, size]."""
    made = _empty_both(x, group)
    _launch_norm(x, weight, eps, made.whole, made.quantized, group)
    return made


def _empty_both(like: Tensor, group: int | None) -> DualRows:
    rows, size = like.shape
    whole = torch.empty((rows, size), dtype=like.dtype, device=like.device)
    return DualRows(whole, empty_quantized(rows, size, group, like))


def _launch_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    normed: Tensor | None,
    rounded: QuantizedRows | None = None,
    group: int | None = None,
) -> None:
    """Write the norm to `normed`, and quantized to `rounded`, whichever are given."""
    rows, rows_at_once, width, warps = _launch(x)
    if rows:
        _norm[(triton.cdiv(rows, rows_at_once),)](
            x, weight, normed, *_places(rounded), rows, _heads(x), *_strides(x), x.shape[-1],
            eps, **_rounding(width, group), ROWS=rows_at_once, WIDTH=width, num_warps=warps,
            **pdl_options(),
        )  # fmt: skip


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`residual + scale * x`, and its rms_norm: (normed, sum), both in residual's dtype.

    `x` and `residual` [tokens, size] of one dtype, the last dimension contiguous. The sum is
    rounded before it is normed, so that the norm is computed from the residual that is kept.
    """
    normed = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    return normed, _launch_add_norm(x, residual, weight, eps, scale, normed)


def add_norm_quantized(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float, group: int | None
) -> tuple[QuantizedRows, Tensor]:
    """`quantize_rows` of add_rms_norm's norm, and the sum, in one launch."""
    made = empty_quantized(len(residual), residual.shape[1], group, residual)
    return made, _launch_add_norm(x, residual, weight, eps, scale, None, made, group)


def add_norm_dual(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float, group: int | None
) -> tuple[DualRows, Tensor]:
    """add_rms_norm's norm, `quantize_rows` of it, and the sum, in one launch."""
    made = _empty_both(residual, group)
    added = _launch_add_norm(x, residual, weight, eps, scale, made.whole, made.quantized, group)
    return made, added


def _launch_add_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    scale: float,
    normed: Tensor | None,
    rounded: QuantizedRows | None = None,
    group: int | None = None,
) -> Tensor:
    """Write the norm to `normed` and `rounded`, whichever are given; returns the sum."""
    added = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    rows, rows_at_once, width, warps = _launch(residual)
    if rows:
        _add_norm[(triton.cdiv(rows, rows_at_once),)](
            x, residual, weight, normed, *_places(rounded), added, rows, x.stride(0),
            residual.stride(0), residual.shape[-1], eps, scale, **_rounding(width, group),
            ROWS=rows_at_once, WIDTH=width, num_warps=warps,
            **pdl_options(),
        )  # fmt: skip
    return added


def rms_norm_twin(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in plain torch, in float64 if `x` is."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return F.rms_norm(wide, (x.shape[-1],), weight.to(wide.dtype), eps).to(x.dtype)


def add_rms_norm_twin(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    added = residual.add(x, alpha=scale)
    return rms_norm_twin(added, weight, eps), added


def norm_floor(
    rows: int, size: int, itemsize: int, *, residual: bool = False, written: int | None = None
) -> Floor:
    """A row is read and written once; a residual, if any, is read and written as well.

    `written` is the bytes of a normed number: 1 if it is quantized (scales are not counted),
    1 more than its own size if both are written. A number is squared, summed, and multiplied
    twice: 4 operations; a residual is scaled and added: 2.
    """
    passes = (3 if residual else 1) * itemsize + (written or itemsize)
    moved = passes * rows * size + size * itemsize
    return Floor(bytes=moved, operations=(6 if residual else 4) * rows * size)


def _launch(x: Tensor) -> tuple[int, int, int, int]:
    """Rows in total, rows of one program, the power of two that holds a row, and warps."""
    size = x.shape[-1]
    rows = x.numel() // size if size else 0
    width = triton.next_power_of_2(max(1, size))
    at_once = max(1, NUMBERS_AT_ONCE // width)
    if rows < FEW_ROWS:
        at_once = 1  # few rows: use as many multiprocessors as possible
    warps = min(16, max(1, at_once * width // NUMBERS_OF_A_WARP))
    return rows, at_once, width, warps


def _heads(x: Tensor) -> int:
    return x.shape[1] if x.dim() == 3 else 1


def _strides(x: Tensor) -> tuple[int, int]:
    return x.stride(0), x.stride(1) if x.dim() == 3 else 0


def _places(rounded: QuantizedRows | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if rounded is None else (rounded.values, rounded.scales)


def _rounding(width: int, group: int | None) -> dict[str, float]:
    """The kernel's constants for quantization; without groups the whole row is one."""
    group = width if group is None else min(width, group)
    return {"MOST": E4M3_MAX, "LEAST": LEAST_SCALE, "GROUP": group}


@triton.jit
def _normed(row, weight, column, size, eps):
    """Norm [ROWS, WIDTH] float32, zeros beyond `size`."""
    mean = tl.sum(row * row, axis=1) / size
    factor = 1.0 / tl.sqrt_rn(mean + eps)
    scale = tl.load(weight + column, mask=column < size, other=0.0).to(tl.float32)
    return row * factor[:, None] * scale[None, :]


@triton.jit
def _store(
    made, dtype, row, column, rows, size, normed, values, scales,
    MOST: tl.constexpr, LEAST: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Round [ROWS, WIDTH] float32 to `dtype`; store that in `normed`, and quantized in `values`
    and `scales`, whichever are given.
    """
    if normed is not None:
        inside = (row < rows)[:, None] & (column < size)[None, :]
        tl.store(normed + row[:, None] * size + column[None, :], made.to(dtype), mask=inside)
    if values is not None:
        once = tl.reshape(made.to(dtype).to(tl.float32), (ROWS, WIDTH // GROUP, GROUP))
        group = tl.arange(0, WIDTH // GROUP)
        store_quantized(once, row, group, rows, size, values, scales, MOST, LEAST, GROUP)


@triton.jit(do_not_specialize=["rows"])
def _norm(
    x, weight, normed, values, scales, rows, heads, token_stride, head_stride, size, eps,
    MOST: tl.constexpr, LEAST: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    start = row // heads * token_stride + row % heads * head_stride
    read = tl.load(x + start[:, None] + column[None, :], mask=inside, other=0.0)
    made = _normed(read.to(tl.float32), weight, column, size, eps)
    _store(
        made, x.dtype.element_ty, row, column, rows, size, normed, values, scales,
        MOST, LEAST, GROUP, ROWS, WIDTH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows"])
def _add_norm(
    x, residual, weight, normed, values, scales, added, rows, x_stride, residual_stride,
    size, eps, scale,
    MOST: tl.constexpr, LEAST: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    fresh = tl.load(x + row[:, None] * x_stride + column[None, :], mask=inside, other=0.0)
    before = tl.load(
        residual + row[:, None] * residual_stride + column[None, :], mask=inside, other=0.0
    )
    both = before.to(tl.float32) + scale * fresh.to(tl.float32)
    both = both.to(added.dtype.element_ty)
    place = row[:, None] * size + column[None, :]
    tl.store(added + place, both, mask=inside)
    made = _normed(both.to(tl.float32), weight, column, size, eps)
    _store(
        made, added.dtype.element_ty, row, column, rows, size, normed, values, scales,
        MOST, LEAST, GROUP, ROWS, WIDTH,
    )  # fmt: skip
