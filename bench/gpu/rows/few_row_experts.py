"""Experts of few rows, fused with norm, gate, weighted sum and residual, as in a decode step.

Compared with what they replace: tokens sorted by expert, grouped products in tiles, and
separate launches for norm, gate and weighted sum.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.rows.experts import chosen_at_random
from bench.gpu.rows.few_rows import EPS, SCALE, SILU
from bench.gpu.shapes import Shape
from engine.kernels.fusion import Choice, ExpertWeights, Fusion, Residual, RowNorm
from engine.kernels.gpu.few_row_experts import (
    few_row_experts_floor,
    mix_few_rows,
    mix_few_rows_twin,
)
from engine.kernels.gpu.few_rows import MOST_ROWS
from engine.kernels.gpu.gates import gated
from engine.kernels.gpu.norms import add_rms_norm
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.products import Route
from engine.kernels.weights import PlainWeight


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of shapes with unquantized experts, for small batches."""
    if not shape.num_experts or shape.quantization is not None:
        return
    for batch in shape.batches:
        if batch <= MOST_ROWS:
            yield Row("experts of few rows", f"{batch} tokens", partial(_make, shape, batch))


def _make(shape: Shape, tokens: int, device: torch.device) -> Prepared:
    experts, top_k = shape.num_experts, shape.num_experts_per_tok
    hidden, width = shape.hidden_size, shape.moe_intermediate_size
    new = partial(torch.randn, dtype=shape.dtype, device=device)
    gate_up = new(experts, 2 * width, hidden) * hidden**-0.5
    down = new(experts, hidden, width) * width**-0.5
    given, norm = new(tokens, hidden), RowNorm(new(hidden), EPS)
    picked = chosen_at_random(shape, tokens)
    choice = Choice(torch.rand(tokens, top_k, device=device), picked.to(device))
    around = Fusion(norm, SILU, Residual(given, SCALE))
    stacks = ExpertWeights(gate_up, None), ExpertWeights(down, None)
    products = TritonProducts()

    def apart() -> Tensor:
        """The separate launches; the norm's adds the residual of the attention before."""
        normed, _ = add_rms_norm(given, given, *norm, SCALE)
        order, offsets = products.sort(choice.experts, experts)
        inward = Route(offsets, order, times=top_k)
        outward = Route(offsets, targets=order)
        both = products.grouped(normed, inward, PlainWeight(gate_up), None)
        middle = gated(both, SILU.activation)
        answers = products.grouped(middle, outward, PlainWeight(down), None)
        return products.combine(answers.view(tokens, top_k, -1), choice.weights)

    used, itemsize = len(picked.unique()), shape.dtype.itemsize
    return Prepared(
        partial(mix_few_rows, given, choice, *stacks, around),
        few_row_experts_floor(tokens, used, (experts, 2 * width, hidden), itemsize, top_k),
        partial(mix_few_rows_twin, given, choice, *stacks, around),
        {"sorted, in tiles, and the rest apart": lambda: apart},
    )
