"""activate(gate) * up on a GPU, in one pass over what one product made of both.

Computed in float32 and rounded once; bound by memory, see `gate_floor`. A tanh-GELU is
x * sigmoid(2z), which is x / 2 * (1 + tanh(z)) and never overflows.
"""

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor

ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_pytorch_tanh": 2, "clamped_swiglu": 3}
NUMBERS_AT_ONCE = 1024
ROOT_HALF = tl.constexpr(0.7071067811865476)
TWICE_ROOT_TWO_OVER_PI = tl.constexpr(1.5957691216057308)
CUBE = tl.constexpr(0.044715)


def gated(gate_up: Tensor, activation: str, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """[rows, 2 * width] to [rows, width]: gates first, then ups (Shazeer 2020).

    `activation` is one of ACTIVATIONS; KeyError for another. `alpha` and `limit` are gpt-oss's
    clamped_swiglu's (engine/models/experts.py). The last dimension is contiguous.
    """
    kind = ACTIVATIONS[activation]
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    made = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if made.numel():
        tiles = triton.cdiv(width, NUMBERS_AT_ONCE)
        _gate[(rows * tiles,)](
            gate_up, made, gate_up.stride(0), width, tiles, alpha, limit,
            KIND=kind, WIDTH=NUMBERS_AT_ONCE, num_warps=4,
        )  # fmt: skip
    return made


def gated_twin(
    gate_up: Tensor, activation: str, alpha: float = 1.702, limit: float = 7.0
) -> Tensor:
    """The same in plain torch, in float64 where `gate_up` is."""
    wide = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    gate, up = wide.chunk(2, -1)
    if activation == "clamped_swiglu":
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return ((up + 1) * gate * torch.sigmoid(alpha * gate)).to(gate_up.dtype)
    if activation == "silu":
        return (F.silu(gate) * up).to(gate_up.dtype)
    form = {"gelu": "none", "gelu_pytorch_tanh": "tanh"}[activation]
    return (F.gelu(gate, approximate=form) * up).to(gate_up.dtype)


def gate_floor(rows: int, width: int, itemsize: int) -> Floor:
    """Two numbers are read for each that is written."""
    return Floor(bytes=3 * rows * width * itemsize, operations=8 * rows * width)


@triton.jit
def _gate(
    gate_up, made, stride, width, tiles, alpha, limit, KIND: tl.constexpr, WIDTH: tl.constexpr
):
    program = tl.program_id(0)
    row = (program // tiles).to(tl.int64)
    column = program % tiles * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    place = gate_up + row * stride + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + width, mask=inside, other=0.0).to(tl.float32)
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
    tl.store(made + row * width + column, (gate * up).to(made.dtype.element_ty), mask=inside)
