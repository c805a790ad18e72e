"""Dense products with fp8 and int4 weights, compared with cuBLAS on unquantized weights."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row, Run
from bench.gpu.rows.products import products_of
from bench.gpu.shapes import Shape
from engine.kernels.gpu.products import TritonProducts, product_floor
from engine.kernels.products import TorchProducts
from engine.kernels.rows import to_fp8
from engine.kernels.weights import Weight, fp8_weight, int4_weight

Formats = dict[str, Callable[[Tensor], Weight]]
EIGHT: Formats = {"fp8": fp8_weight, "fp8 in blocks": partial(fp8_weight, blocked=True)}
FOUR: Formats = {"int4": int4_weight}


def rows(shape: Shape) -> Iterator[Row]:
    """fp8 for shapes that are quantized so, int4 for dense shapes with unquantized weights."""
    if shape.num_experts:
        return
    formats = EIGHT if shape.quantization == "fp8" else FOUR
    for name, outputs, inputs in products_of(shape):
        for tokens in (*shape.batches, shape.prefill):
            if name == "head" and tokens == shape.prefill:
                continue
            for called, form in formats.items():
                setting = f"{name} {outputs} x {inputs}, {tokens} rows"
                make = partial(_make, form, (tokens, outputs, inputs), shape.dtype)
                yield Row(f"{called} product", setting, make)


def _make(
    form: Callable[[Tensor], Weight],
    sizes: tuple[int, int, int],
    dtype: torch.dtype,
    device: torch.device,
) -> Prepared:
    tokens, outputs, inputs = sizes
    given = torch.randn(tokens, inputs, dtype=dtype, device=device)
    values = torch.randn(1, outputs, inputs, dtype=dtype, device=device)
    weight = form(values)
    rivals: dict[str, Callable[[], Run]] = {"cuBLAS whole": partial(_whole, given, values[0])}
    if form is fp8_weight:
        rivals["torch._scaled_mm"] = partial(_scaled, given, values[0])
    return Prepared(
        partial(TritonProducts().multiply, given, weight),
        product_floor(tokens, weight, itemsize=dtype.itemsize),
        partial(TorchProducts().multiply, given, weight),
        rivals,
    )


def _whole(given: Tensor, values: Tensor) -> Run:
    return partial(torch.mm, given, values.T)


def _scaled(given: Tensor, values: Tensor) -> Run:
    """By cuBLAS, with a scale for each row and each output; inputs are already quantized."""
    (ours, our_scales), (theirs, their_scales) = (
        to_fp8(one, one.shape[1]) for one in (given, values)
    )
    return partial(
        torch._scaled_mm,
        ours,
        theirs.T,
        scale_a=our_scales,
        scale_b=their_scales.T,
        out_dtype=given.dtype,
    )
