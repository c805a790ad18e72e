"""The dense products of a layer and of the LM head, which cuBLAS does for us.

For few rows they are compared with the kernel for experts' weights, and for very few rows also
with the unfused kernel of engine/kernels/gpu/few_rows.py.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from bench.gpu.row import Prepared, Row, Run
from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor
from engine.kernels.gpu.few_rows import MOST_ROWS, few_rows
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.gpu.tiles import FEW_ROWS
from engine.kernels.weights import PlainWeight


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of each product: one input row per sequence of a step, and a whole prompt."""
    if shape.quantization is not None:
        return
    for name, outputs, inputs in products_of(shape):
        for tokens in (*shape.batches, shape.prefill):
            if name == "head" and tokens == shape.prefill:
                continue  # only one row of a prompt goes through the head
            make = partial(_make, tokens, outputs, inputs, shape.dtype)
            yield Row("product", f"{name} {outputs} x {inputs}, {tokens} rows", make)


def products_of(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Name, outputs and inputs of each."""
    hidden, queries = shape.hidden_size, shape.num_attention_heads * shape.head_dim
    yield "qkv", queries + 2 * shape.num_key_value_heads * shape.head_dim, hidden
    yield "output", hidden, queries
    if not shape.num_experts:
        yield "gate and up", 2 * shape.intermediate_size, hidden
        yield "down", hidden, shape.intermediate_size
    yield "head", shape.vocab_size, hidden


def _make(
    tokens: int, outputs: int, inputs: int, dtype: torch.dtype, device: torch.device
) -> Prepared:
    rows_in = torch.randn(tokens, inputs, dtype=dtype, device=device)
    weight = torch.randn(outputs, inputs, dtype=dtype, device=device)
    result = torch.empty(tokens, outputs, dtype=dtype, device=device)
    numbers = rows_in.numel() + weight.numel() + result.numel()
    floor = Floor(numbers * dtype.itemsize, 2 * tokens * outputs * inputs)
    run = partial(torch.mm, rows_in, weight.T, out=result)
    if tokens > FEW_ROWS:
        return Prepared(run, floor)
    of_one = PlainWeight(weight[None])
    rivals: dict[str, Callable[[], Run]] = {
        "as of an expert": lambda: partial(TritonProducts().multiply, rows_in, of_one)
    }
    if tokens <= MOST_ROWS:
        rivals["of few rows"] = lambda: partial(few_rows, rows_in, weight)
    return Prepared(run, floor, rivals=rivals)
