"""The kernels between products: norms and gates, compared with torch's own."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.gpu.gates import gate_floor, gated, gated_twin
from engine.kernels.gpu.norms import (
    add_rms_norm,
    add_rms_norm_twin,
    norm_floor,
    rms_norm,
    rms_norm_twin,
)

EPS = 1e-5


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of each kernel, for a step of every batch, and for a prompt."""
    if shape.quantization is not None:
        return
    width = shape.intermediate_size
    if shape.num_experts:
        width = shape.num_experts_per_tok * shape.moe_intermediate_size
    for tokens in (*shape.batches, shape.prefill):
        sizes = tokens, shape.hidden_size, shape.dtype
        setting = f"{shape.hidden_size} numbers, {tokens} rows"
        yield Row("norm", setting, partial(_norm, *sizes))
        yield Row("norm with a residual", setting, partial(_add_norm, *sizes))
        gate = partial(_gate, tokens, width, shape.dtype)
        yield Row("gate", f"silu, {width} numbers, {tokens} rows", gate)


def _norm(tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    x = torch.randn(tokens, size, dtype=dtype, device=device)
    weight = torch.randn(size, dtype=dtype, device=device)
    return Prepared(
        partial(rms_norm, x, weight, EPS),
        norm_floor(tokens, size, dtype.itemsize),
        partial(rms_norm_twin, x, weight, EPS),
        {"torch": lambda: partial(F.rms_norm, x, (size,), weight, EPS)},
    )


def _add_norm(tokens: int, size: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    x, residual = (torch.randn(tokens, size, dtype=dtype, device=device) for _ in range(2))
    weight = torch.randn(size, dtype=dtype, device=device)

    def by_torch() -> torch.Tensor:
        return F.rms_norm(x + residual, (size,), weight, EPS)

    return Prepared(
        partial(add_rms_norm, x, residual, weight, EPS),
        norm_floor(tokens, size, dtype.itemsize, residual=True),
        partial(add_rms_norm_twin, x, residual, weight, EPS),
        {"torch": lambda: by_torch},
    )


def _gate(tokens: int, width: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    both = torch.randn(tokens, 2 * width, dtype=dtype, device=device)

    def by_torch() -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return F.silu(gate) * up

    return Prepared(
        partial(gated, both, "silu"),
        gate_floor(tokens, width, dtype.itemsize),
        partial(gated_twin, both, "silu"),
        {"torch": lambda: by_torch},
    )
