"""Products of few rows fused with norm, gate and residual, as in a layer of a decode step.

Each is compared with what it replaces: cuBLAS's product, and separate launches for norm, gate
and residual.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.rows.products import products_of
from bench.gpu.shapes import Shape
from engine.kernels.contract import Fusion, Gate, Residual, RowNorm
from engine.kernels.gpu.few_rows import MOST_ROWS, few_rows, few_rows_floor, few_rows_twin
from engine.kernels.gpu.gates import gated
from engine.kernels.gpu.norms import add_rms_norm

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


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of dense shapes with unquantized weights, for small batches."""
    if shape.quantization is not None or shape.num_experts:
        return
    for name, outputs, inputs in products_of(shape):
        for batch in shape.batches:
            if name not in AROUND or batch > MOST_ROWS:
                continue
            kind = AROUND[name]
            setting = f"{name} {outputs} x {inputs} with {kind.called}, {batch} rows"
            sizes = batch, outputs, inputs
            yield Row("product of few rows", setting, partial(_make, kind, sizes, shape.dtype))


def _make(
    kind: _Kind, sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> Prepared:
    batch, outputs, inputs = sizes
    given = torch.randn(batch, inputs, dtype=dtype, device=device)
    weight = torch.randn(outputs, inputs, dtype=dtype, device=device) * inputs**-0.5
    hidden = inputs if kind.norm else outputs
    residual = torch.randn(batch, hidden, dtype=dtype, device=device)
    norm = RowNorm(torch.randn(hidden, dtype=dtype, device=device), EPS)
    fusion = Fusion(
        norm if kind.norm else None,
        SILU if kind.gate else None,
        None if kind.norm else Residual(residual, SCALE),
    )

    def apart() -> Tensor:
        """The separate launches; the norm's adds the residual of the product before."""
        rows_in = given
        if kind.norm:
            rows_in, _ = add_rms_norm(given, residual, *norm, SCALE)
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
