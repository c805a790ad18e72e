"""Products of few rows fused with norm, gate and residual, as in a layer of a decode step.

Each is compared with what it replaces: cuBLAS's product, and separate launches for norm, gate
and residual. With fp8 weights, our kernel for tiles, and norms and gates that quantize.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.rows.products import products_of
from bench.gpu.shapes import Shape
from engine.kernels.fusion import Fusion, Gate, Residual, RowNorm
from engine.kernels.gpu.few_rows import MOST_ROWS, few_rows, few_rows_floor, few_rows_twin
from engine.kernels.gpu.few_rows_fp8 import MOST_FP8_ROWS, few_rows_fp8, few_rows_fp8_floor
from engine.kernels.gpu.gates import gated
from engine.kernels.gpu.norms import add_norm_quantized, add_rms_norm
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.rows import Rows
from engine.kernels.weights import fp8_weight

EPS, SCALE = 1e-5, 1.0
SILU = Gate("silu")


class _Kind(NamedTuple):
    """What is fused with a product, before and after it."""

    norm: bool = False
    gate: bool = False

    @property
    def called(self) -> str:
        return "a norm" + " and a gate" * self.gate if self.norm else "a residual"


AROUND = {
    "qkv": _Kind(norm=True),
    "output": _Kind(),
    "gate and up": _Kind(norm=True, gate=True),
    "down": _Kind(),
}


FP8_KINDS = {"a scale for each output": False, "blocks of 128": True}


def rows(shape: Shape) -> Iterator[Row]:
    """For small batches, with unquantized or fp8 weights."""
    eight = shape.quantization == "fp8"
    for name, outputs, inputs in products_of(shape):
        for batch in shape.batches:
            if name not in AROUND or batch > (MOST_FP8_ROWS if eight else MOST_ROWS):
                continue
            kind, sizes = AROUND[name], (batch, outputs, inputs)
            setting = f"{name} {outputs} x {inputs} with {kind.called}, {batch} rows"
            if not eight:
                make = partial(_make, kind, sizes, shape.dtype)
                yield Row("product of few rows", setting, make)
                continue
            for called, blocked in FP8_KINDS.items():
                make = partial(_make_fp8, kind, sizes, shape.dtype, blocked)
                yield Row("product of few rows", f"fp8, {called}, {setting}", make)


class _Surroundings(NamedTuple):
    """Inputs of a product, what is fused with it, and the residual that a norm adds."""

    given: Tensor
    residual: Tensor
    fusion: Fusion


def _around(
    kind: _Kind, sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> _Surroundings:
    batch, outputs, inputs = sizes
    given = torch.randn(batch, inputs, dtype=dtype, device=device)
    hidden = inputs if kind.norm else outputs
    residual = torch.randn(batch, hidden, dtype=dtype, device=device)
    norm = RowNorm(torch.randn(hidden, dtype=dtype, device=device), EPS)
    fusion = Fusion(
        norm if kind.norm else None,
        SILU if kind.gate else None,
        None if kind.norm else Residual(residual, SCALE),
    )
    return _Surroundings(given, residual, fusion)


def _make(
    kind: _Kind, sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> Prepared:
    batch, outputs, inputs = sizes
    given, residual, fusion = _around(kind, sizes, dtype, device)
    weight = torch.randn(outputs, inputs, dtype=dtype, device=device) * inputs**-0.5

    def apart() -> Tensor:
        """The separate launches; the norm's adds the residual of the product before."""
        rows_in = given
        if fusion.norm is not None:
            rows_in, _ = add_rms_norm(given, residual, *fusion.norm, SCALE)
        made = torch.mm(rows_in, weight.T)
        return gated(made, SILU.activation) if kind.gate else made

    return Prepared(
        partial(few_rows, given, weight, None, fusion),
        few_rows_floor(
            batch, outputs, inputs, dtype.itemsize, gate=kind.gate, onto=not kind.norm
        ),
        partial(few_rows_twin, given, weight, None, fusion),
        {"cuBLAS, and the rest apart": lambda: apart},
    )


def _make_fp8(
    kind: _Kind,
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    blocked: bool,
    device: torch.device,
) -> Prepared:
    batch, outputs, inputs = sizes
    given, residual, fusion = _around(kind, sizes, dtype, device)
    whole = torch.randn(1, outputs, inputs, dtype=dtype, device=device) * inputs**-0.5
    weight = fp8_weight(whole, blocked=blocked)

    def apart() -> Rows:
        """The separate launches: a norm adds the residual, and quantizes; other rows are
        quantized before the product. A gate's quantizing is the next product's.
        """
        rows_in: Rows = given
        if fusion.norm is not None:
            rows_in, _ = add_norm_quantized(
                given, residual, *fusion.norm, SCALE, weight.row_group
            )
        made = TritonProducts().multiply(rows_in, weight)
        return gated(made, SILU.activation) if kind.gate else made

    return Prepared(
        partial(few_rows_fp8, given, weight, None, fusion),
        few_rows_fp8_floor(batch, weight, dtype.itemsize, gate=kind.gate, onto=not kind.norm),
        partial(few_rows_twin, given, weight, None, fusion),
        {"in tiles, and the rest apart": lambda: apart},
    )
