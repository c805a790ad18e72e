"""All products of a step with fp8 weights, as one graph, compared with torch._scaled_mm's.

Rows are already quantized, as norms and gates do that. Each layer has its own weights, as in a
model, so that none is in a cache.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.gpu.captured import captured
from bench.gpu.row import Prepared, Row, Run
from bench.gpu.rows.products import products_of
from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor
from engine.kernels.gpu.products import TritonProducts, product_floor
from engine.kernels.gpu.rounding import quantize_rows
from engine.kernels.rows import QuantizedRows
from engine.kernels.weights import Fp8Weight, fp8_weight

HEAD = "head"


class Product(NamedTuple):
    """One product of a step, and its input."""

    rows: QuantizedRows
    weight: Fp8Weight


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of dense shapes in fp8, for each batch."""
    if shape.quantization != "fp8" or shape.num_experts:
        return
    for batch in shape.batches:
        setting = f"fp8, {batch} rows, all layers and the head"
        yield Row("products of a step", setting, partial(_make, shape, batch))


def _make(shape: Shape, batch: int, device: torch.device) -> Prepared:
    step = list(_step(shape, batch, device))
    floors = [product_floor(batch, one.weight, itemsize=shape.dtype.itemsize) for one in step]
    moved, counted = (sum(one.bytes for one in floors), sum(one.operations for one in floors))
    ours = TritonProducts()

    def run() -> Tensor:
        """The result of the last product."""
        return [ours.multiply(*one) for one in step][-1]

    rivals = {"torch._scaled_mm": partial(_scaled, step, device)}
    return Prepared(captured(run, device), Floor(moved, counted, "float8"), None, rivals)


def _step(shape: Shape, batch: int, device: torch.device) -> Iterator[Product]:
    """The products in order, the head last; layers have equal weights at separate addresses."""
    kinds = [
        (name, _product(batch, (outputs, inputs), shape.dtype, device))
        for name, outputs, inputs in products_of(shape)
    ]
    for _ in range(shape.num_hidden_layers):
        for name, (given, weight) in kinds:
            if name != HEAD:
                yield Product(given, Fp8Weight(weight.values.clone(), weight.scales.clone()))
    yield from (one for name, one in kinds if name == HEAD)


def _product(
    batch: int, sizes: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Product:
    given = torch.randn(batch, sizes[1], dtype=dtype, device=device)
    weight = torch.randn(1, *sizes, dtype=dtype, device=device)
    return Product(quantize_rows(given, None), fp8_weight(weight))


def _scaled(step: Sequence[Product], device: torch.device) -> Run:
    """The products by cuBLAS, with a scale for each row and each output."""

    def run() -> Tensor:
        return [scaled(given, weight.values[0], weight.scales[0]) for given, weight in step][-1]

    return captured(run, device)


def scaled(rows: QuantizedRows, values: Tensor, scales: Tensor) -> Tensor:
    """`values` [outputs, inputs] with `scales` [1, outputs]; [rows, outputs]."""
    return torch._scaled_mm(
        rows.values,
        values.T,
        scale_a=rows.scales.flatten()[:, None],  # whatever its layout, its stride must be 1
        scale_b=scales,
        out_dtype=rows.dtype,
    )
