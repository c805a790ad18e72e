"""Gated activations, activate(gate) * up, in one pass over a product's output.

Computed in float32 and rounded once; bound by memory, see `gate_floor`. A tanh-GELU is
x * sigmoid(2z), which is x / 2 * (1 + tanh(z)) and never overflows.

For a product with fp8 weights the same launch quantizes the rows (`gated_quantized`), with the
same bits as `quantize_rows`. The scale of a whole row is known only at its end. A program holds
its row until then; a row that is longer than MOST_HELD is read and computed twice, the second
time from the cache.
"""

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.rounding import (
    GROUPS,
    LONGEST,
    e4m3,
    empty_quantized,
    scale_of,
    sizes_of,
    store_quantized,
)
from engine.kernels.rows import E4M3_MAX, LEAST_SCALE, QuantizedRows

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_pytorch_tanh": 2, "clamped_swiglu": 3}
CLAMP = 1.702, 7.0
"""The alpha and the limit of gpt-oss's clamped_swiglu (engine/models/experts.py)."""
NUMBERS_AT_ONCE, MOST_HELD = 1024, 16384
ROOT_HALF = tl.constexpr(0.7071067811865476)
TWICE_ROOT_TWO_OVER_PI = tl.constexpr(1.5957691216057308)
CUBE = tl.constexpr(0.044715)


def gated(
    gate_up: Tensor, activation: str, alpha: float = CLAMP[0], limit: float = CLAMP[1]
) -> Tensor:
    """[rows, 2 * width] to [rows, width]: gates first, then ups (Shazeer 2020).

    KeyError for an `activation` that is not in ACTIVATIONS. `alpha` and `limit` are
    clamped_swiglu's. The last dimension must be contiguous.
    """
    kind = ACTIVATIONS[activation]
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    made = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if made.numel():
        tiles = triton.cdiv(width, NUMBERS_AT_ONCE)
        _gate[(rows * tiles,)](
            gate_up, made, gate_up.stride(0), width, tiles, alpha, limit,
            KIND=kind, WIDTH=NUMBERS_AT_ONCE, num_warps=4, **pdl_options(),
        )  # fmt: skip
    return made


def gated_quantized(
    gate_up: Tensor,
    activation: str,
    group: int | None,
    alpha: float = CLAMP[0],
    limit: float = CLAMP[1],
) -> QuantizedRows:
    """`quantize_rows` of `gated`, in one launch."""
    kind = ACTIVATIONS[activation]
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    made = empty_quantized(rows, width, group, gate_up)
    bounds = {"KIND": kind, "MOST": E4M3_MAX, "LEAST": LEAST_SCALE}
    if rows and group is None:
        block = triton.next_power_of_2(width)
        block = block if block <= MOST_HELD else LONGEST
        _round_gate[(rows,)](
            gate_up, made.values, made.scales, gate_up.stride(0), width, alpha, limit,
            **bounds, BLOCK=block, HELD=block >= width, num_warps=16 if block > LONGEST else 8,
        )  # fmt: skip
    elif rows and group is not None:
        _round_gate_groups[(rows, triton.cdiv(width, group * GROUPS))](
            gate_up, made.values, made.scales, rows, gate_up.stride(0), width, alpha, limit,
            **bounds, GROUP=group, GROUPS=GROUPS, num_warps=4,
        )  # fmt: skip
    return made


def gated_twin(
    gate_up: Tensor, activation: str, alpha: float = CLAMP[0], limit: float = CLAMP[1]
) -> Tensor:
    """The same in plain torch, in float64 if `gate_up` is."""
    wide = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    gate, up = wide.chunk(2, -1)
    if activation == "clamped_swiglu":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)
    if activation == "silu":
        return (F.silu(gate) * up).to(gate_up.dtype)
    form = {"gelu": "none", "gelu_pytorch_tanh": "tanh"}[activation]
    return (F.gelu(gate, approximate=form) * up).to(gate_up.dtype)


def gate_floor(rows: int, width: int, itemsize: int, written: int | None = None) -> Floor:
    """Two numbers are read for each that is written, in `written` bytes if quantized.

    Each is a product, and an activation of some 7 operations.
    """
    moved = (2 * itemsize + (written or itemsize)) * rows * width
    return Floor(bytes=moved, operations=8 * rows * width)


@triton.jit
def _gate(
    gate_up, made, stride, width, tiles, alpha, limit,
    KIND: tl.constexpr, WIDTH: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    program = tl.program_id(0)
    row = (program // tiles).to(tl.int64)
    column = program % tiles * WIDTH + tl.arange(0, WIDTH)
    answer = _made(gate_up + row * stride, column, width, alpha, limit, KIND)
    tl.store(made + row * width + column, answer, mask=column < width)


@triton.jit
def _round_gate(
    gate_up, values, scales, stride, width, alpha, limit,
    KIND: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr, BLOCK: tl.constexpr,
    HELD: tl.constexpr,
):  # fmt: skip
    """A program: one row, with one scale."""
    row = tl.program_id(0).to(tl.int64)
    source, within = gate_up + row * stride, tl.arange(0, BLOCK)
    target = values + row * width
    made = _made(source, within, width, alpha, limit, KIND).to(tl.float32)
    largest, spoiled = sizes_of(made)
    if not HELD:
        for first in range(BLOCK, width, BLOCK):
            more = _made(source, first + within, width, alpha, limit, KIND).to(tl.float32)
            size, none = sizes_of(more)
            largest, spoiled = tl.maximum(largest, size), spoiled + none
    scale = scale_of(tl.max(largest, 0), tl.sum(spoiled, 0), MOST, LEAST)
    tl.store(scales + row, scale)
    tl.store(target + within, e4m3(tl.div_rn(made, scale)), mask=within < width)
    if not HELD:
        for first in range(BLOCK, width, BLOCK):
            at = first + within
            more = _made(source, at, width, alpha, limit, KIND).to(tl.float32)
            tl.store(target + at, e4m3(tl.div_rn(more, scale)), mask=at < width)


@triton.jit(do_not_specialize=["rows"])
def _round_gate_groups(
    gate_up, values, scales, rows, stride, width, alpha, limit,
    KIND: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
    GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A program: GROUPS groups of a row, each with its own scale."""
    row = tl.program_id(0) + tl.arange(0, 1)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = (group[:, None] * GROUP + tl.arange(0, GROUP)[None, :])[None, :, :]
    source = gate_up + row.to(tl.int64)[:, None, None] * stride
    made = _made(source, at, width, alpha, limit, KIND).to(tl.float32)
    store_quantized(made, row, group, rows, width, values, scales, MOST, LEAST, GROUP)


@triton.jit
def _made(source, column, width, alpha, limit, KIND: tl.constexpr):
    """The gated numbers at `column` of the row at `source`, rounded to its dtype; 0 beyond."""
    inside, place = column < width, source + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=inside, other=0.0).to(tl.float32)
    return activated(gate, up, alpha, limit, KIND).to(source.dtype.element_ty)


@triton.jit
def activated(gate, up, alpha, limit, KIND: tl.constexpr):
    """One of ACTIVATIONS and its gate, float32 to float32."""
    if KIND == 0:
        gate = gate * tl.sigmoid(gate)
    elif KIND == 1:
        gate = 0.5 * gate * (1.0 + tl.erf(gate * ROOT_HALF))
    elif KIND == 2:
        steep = TWICE_ROOT_TWO_OVER_PI * (gate + CUBE * gate * gate * gate)
        gate = gate * tl.sigmoid(steep)
    else:
        gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.clamp(up, -limit, limit, propagate_nan=tl.PropagateNan.ALL)
        gate = gate * tl.sigmoid(alpha * gate)
        up += 1.0
    return gate * up
