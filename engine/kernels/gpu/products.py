"""Products with weights of one or many experts, unquantized, fp8 or int4, in one launch.

A program makes one tile of the result: some sorted rows of one expert by some outputs. Launches
do not depend on the router's choice, so they can be captured in a CUDA graph. Few rows (decode)
make tiles of 16 rows, which read every used weight once; if there are too few tiles to keep all
multiprocessors reading, each takes a part of the inputs, and a second kernel adds the parts up,
always in the same order (split-K). Many rows (prefill) are processed in bands, so that a tile's
inputs are still in the L2 cache from its neighbours. The floor is `product_floor`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.expert_choice import ChoiceRule
from engine.kernels.floor import Floor, Unit
from engine.kernels.gpu.expert_choice import choose_experts
from engine.kernels.gpu.few_rows import MOST_ROWS, few_row_scores
from engine.kernels.gpu.lora import add_adapters
from engine.kernels.gpu.product_kernels import add_up, multiply_tiles
from engine.kernels.gpu.rounding import quantize_rows
from engine.kernels.gpu.sorting import combine, sort_by_expert
from engine.kernels.gpu.tiles import (
    BAND,
    FEW_ROWS,
    FORMATS,
    choose_tiles,
    most_tiles,
    multiprocessors_of,
    operand_dtype,
    places_of,
)
from engine.kernels.lora import AdapterStack, SortedRows
from engine.kernels.products import Route
from engine.kernels.rows import Rows, already_quantized, whole_rows
from engine.kernels.weights import (
    Fp8Weight,
    PlainWeight,
    Weight,
)

PLAIN, CHANNELS, BLOCKS, FOUR_BITS = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class TritonProducts:
    """See Products in engine/kernels/products.py, which is its twin."""

    def multiply(self, rows: Rows, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """See Products, here and below."""
        assert weight.shape[0] == 1, "of several experts, by a route"
        return _launch(rows, weight, bias, None)

    def grouped(self, rows: Rows, route: Route, weight: Weight, bias: Tensor | None) -> Tensor:
        """See Products. Does not read the offsets on the host."""
        return _launch(rows, weight, bias, route)

    def score(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See Products. One launch for few rows; else as torch does it."""
        if len(rows) <= MOST_ROWS:
            return few_row_scores(_lying_whole(rows), weight, bias)
        return F.linear(rows.to(weight.dtype), weight, bias)

    def choose(
        self, logits: Tensor, rule: ChoiceRule, correction: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """See Products. One launch."""
        return choose_experts(logits, rule, correction)

    def sort(self, chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
        """See Products. One launch."""
        return sort_by_expert(chosen, experts)

    def add_adapters(
        self, outputs: Tensor, inputs: Tensor, rows: SortedRows, stack: AdapterStack
    ) -> Tensor:
        """See Products. Two launches."""
        return add_adapters(outputs, inputs, rows, stack)

    def combine(self, answers: Tensor, weights: Tensor) -> Tensor:
        """See Products. One launch."""
        return combine(answers, weights)


def _launch(rows: Rows, weight: Weight, bias: Tensor | None, route: Route | None) -> Tensor:
    experts, outputs, inputs = weight.shape
    operands, places = _operands(rows, weight), places_of(weight)
    long = places if operands.order is None else inputs
    assert operands.rows.shape[1] == long, "rows are as long as the weight is wide"
    bias = None if bias is None else bias.contiguous()
    sources = targets = offsets = None
    if route is not None:
        sources, targets, offsets = route.sources, route.targets, route.offsets
    count = len(rows) if sources is None else len(sources)
    here = operands.rows
    allocate = here.new_zeros if route is not None and route.partly else here.new_empty
    answers = allocate((count, outputs), dtype=rows.dtype)
    if not count:
        return answers
    tiles = choose_tiles(count, weight, multiprocessors_of(here.device))
    into = answers
    if tiles.splits > 1:
        into = allocate((tiles.splits, count, outputs), dtype=torch.float32)
    row_tiles = -(-count // tiles.rows)
    if offsets is not None:
        row_tiles = most_tiles(count, experts, tiles.rows)
    column_tiles = -(-outputs // tiles.outputs)
    steps = -(-places // tiles.step)
    multiply_tiles[(row_tiles * column_tiles, tiles.splits)](
        operands.rows, operands.row_scales, operands.weight, operands.scales, operands.zeros,
        operands.order, bias, into, offsets, sources, targets,
        1 if route is None else route.times,
        count, outputs, places, experts, row_tiles, column_tiles, -(-steps // tiles.splits),
        operands.rows.stride(0), *operands.strides, outputs,
        FORMAT=operands.format, GROUPED=offsets is not None,
        EXPERTS=triton.next_power_of_2(experts), OPERAND=operands.dtype,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.outputs, STEP=tiles.step, BAND=BAND,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if tiles.splits > 1:
        block = 1024
        add_up[(-(-answers.numel() // block),)](
            into, answers, count, outputs, tiles.splits, BLOCK=block
        )
    return answers


@dataclass(frozen=True, slots=True, eq=False)
class _Operands:
    """What the kernel reads; `strides` are those of row scales, weight and scales."""

    format: int
    dtype: tl.dtype
    rows: Tensor
    weight: Tensor
    row_scales: Tensor | None = None
    scales: Tensor | None = None
    zeros: Tensor | None = None
    order: Tensor | None = None
    strides: tuple[int, ...] = (0, 0, 0, 0, 0, 0)


def _operands(rows: Rows, weight: Weight) -> _Operands:
    if isinstance(weight, Fp8Weight):
        return _eight_bits(rows, weight)
    rows = _lying_whole(whole_rows(rows))
    dtype = operand_dtype(rows)
    if isinstance(weight, PlainWeight):
        strides = (0, 0, *weight.values.stride()[:2], 0, 0)
        return _Operands(PLAIN, dtype, rows, weight.values, strides=strides)
    packed, order = weight.packed.stride(), weight.order
    if order is not None and weight.shape[0] == 1 and len(rows) > FEW_ROWS:
        rows, order = _looked_up(rows, order[0]), None  # tiles then read contiguous inputs
    strides = (0, 0, packed[0], packed[1], weight.scales.stride(0), weight.scales.stride(1))
    return _Operands(
        FOUR_BITS, dtype, rows, weight.packed,
        scales=weight.scales, zeros=weight.zeros, order=order, strides=strides,
    )  # fmt: skip


def _looked_up(rows: Tensor, order: Tensor) -> Tensor:
    """[rows, places]: the input of each place, 0 for places without one."""
    if rows.shape[1] == len(order):
        return rows.index_select(1, order)
    return rows.index_select(1, order.clamp(min=0)).masked_fill_(order < 0, 0)


def _eight_bits(rows: Rows, weight: Fp8Weight) -> _Operands:
    """Operands for an fp8 weight; quantizes the rows if they are not quantized yet."""
    group = weight.row_group
    ours = already_quantized(rows, group)
    if ours is None:
        ours = quantize_rows(_lying_whole(whole_rows(rows)), group)
    return _Operands(
        BLOCKS if weight.blocked else CHANNELS,
        FORMATS[ours.values.dtype],
        ours.values,
        weight.values,
        ours.scales,
        weight.scales,
        strides=(
            *ours.scales.stride(),
            *weight.values.stride()[:2],
            *weight.scales.stride()[:2],
        ),
    )


def _lying_whole(rows: Tensor) -> Tensor:
    return rows if rows.stride(1) == 1 else rows.contiguous()


def product_floor(rows: int, weight: Weight, experts: int = 1, itemsize: int = 2) -> Floor:
    """For `rows` rows in total, which go to `experts` of the experts.

    Each used weight with its scales is read once, rows are read and results written once;
    quantized rows are not counted. Operations are those of the unit that multiplies: int4
    weights are widened to the rows' dtype.
    """
    every, outputs, inputs = weight.shape
    used = sum(part.nbytes for part in _parts(weight)) * experts // every
    unit: Unit = "float8" if isinstance(weight, Fp8Weight) else "bfloat16"
    passed = rows * (inputs + outputs) * itemsize
    return Floor(used + passed, 2 * rows * outputs * inputs, unit)


def _parts(weight: Weight) -> list[Tensor]:
    if isinstance(weight, PlainWeight):
        return [weight.values]
    if isinstance(weight, Fp8Weight):
        return [weight.values, weight.scales]
    more = [part for part in (weight.zeros, weight.order) if part is not None]
    return [weight.packed, weight.scales, *more]
