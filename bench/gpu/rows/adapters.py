"""What LoRA adapters add to the dense products of a layer, for rows that have several.

Compared with cuBLAS's two products for one adapter that all rows have.
"""

from collections.abc import Iterator
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.rows.products import products_of
from bench.gpu.shapes import Shape
from engine.kernels.gpu.lora import adapters_floor, add_adapters
from engine.kernels.lora import AdapterStack, SortedRows, add_adapters_twin

ADAPTERS, RANK = 8, 16
PARTS = {"qkv": 3, "output": 1, "gate and up": 2, "down": 1}
"""Layers that are fused: the ranks of an adapter are those of all of them."""


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of each product: one input row per sequence of a step, and a whole prompt."""
    for name, outputs, inputs in products_of(shape):
        if name not in PARTS:
            continue
        rank = PARTS[name] * RANK
        for tokens in (*shape.batches, shape.prefill):
            sizes = tokens, outputs, inputs, rank
            setting = f"{name} {outputs} x {inputs}, rank {rank}, {tokens} rows"
            yield Row("adapters", setting, partial(_make, sizes, shape.dtype))


def _make(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> Prepared:
    tokens, outputs, inputs, rank = sizes
    rows_in = torch.randn(tokens, inputs, dtype=dtype, device=device)
    result = torch.zeros(tokens, outputs, dtype=dtype, device=device)
    down = torch.randn(ADAPTERS, rank, inputs, dtype=dtype, device=device) * inputs**-0.5
    up = torch.randn(ADAPTERS, outputs, rank, dtype=dtype, device=device) * rank**-0.5
    stack, used = AdapterStack(down, up), min(ADAPTERS, tokens)
    ours = _in_turns(tokens, device)

    def twin() -> Tensor:
        return add_adapters_twin(torch.zeros_like(result), rows_in, ours, stack)

    def of_one() -> Tensor:
        return torch.addmm(result, rows_in @ down[0].T, up[0].T)

    return Prepared(
        partial(add_adapters, result, rows_in, ours, stack),  # from zeros, when it is compared
        adapters_floor(tokens, stack, used, dtype.itemsize),
        twin,
        {"cuBLAS, one adapter": lambda: of_one},
    )


def _in_turns(rows: int, device: torch.device) -> SortedRows:
    """Each row has the next adapter."""
    order = sorted(range(rows), key=lambda row: row % ADAPTERS)
    ends = [len(range(adapter, rows, ADAPTERS)) for adapter in range(ADAPTERS)]
    offsets = torch.tensor([0, *accumulate(ends)], dtype=torch.int32)
    return SortedRows(torch.tensor(order, dtype=torch.int32).to(device), offsets.to(device))
