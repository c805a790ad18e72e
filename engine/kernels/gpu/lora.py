"""What LoRA adapters add to a linear layer's outputs: two launches, whoever has which adapter.

The rows of a step come sorted by adapter (SortedRows), so a tile of rows has one adapter, which
its program finds in the offsets. Rows without an adapter are in no tile. Launches do not depend
on the rows' adapters, so they can be captured in a CUDA graph.

A is wide and low: `_shrink` divides its inputs among programs, because its outputs alone would
leave most multiprocessors idle. `_expand` adds the parts up, multiplies with B and adds the
result to the layer's outputs. Twin: engine/kernels/lora.py. Floor: `adapters_floor`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.gpu.product_kernels import owner_of
from engine.kernels.gpu.tiles import (
    FEW_ROWS,
    MOST_SPLITS,
    most_tiles,
    multiprocessors_of,
    operand_dtype,
)
from engine.kernels.lora import AdapterStack, SortedRows

STEP = 128  # inputs of A that a program multiplies at once
RANKS = 64  # of A, or of B, that a program multiplies at once
OUTPUTS = 128  # of B, for one program
LEAST_STEPS = 2  # of a part of A's inputs
FEW, MANY = 16, 64  # rows of a tile


def add_adapters(
    outputs: Tensor, inputs: Tensor, rows: SortedRows, stack: AdapterStack
) -> Tensor:
    """Add to `outputs` [rows, outputs] what each row's adapter makes of `inputs`; returns them.

    `inputs` [rows, inputs]; the last dimension of both must be contiguous, and all but the
    rows' numbers must have one dtype.
    """
    count, width = inputs.shape
    adapters, rank, _ = stack.down.shape
    if not count:
        return outputs
    assert inputs.stride(1) == outputs.stride(1) == 1, "rows lie whole"
    assert inputs.dtype is outputs.dtype is stack.down.dtype is stack.up.dtype, "of one dtype"
    height = FEW if count <= FEW_ROWS else MANY
    row_tiles, rank_tiles = most_tiles(count, adapters, height), triton.cdiv(rank, RANKS)
    parts, part_steps = _parts(count, row_tiles * rank_tiles, width, inputs.device)
    sums = torch.empty((parts, count, rank), dtype=torch.float32, device=inputs.device)
    shared = {
        "ADAPTERS": triton.next_power_of_2(adapters),
        "OPERAND": operand_dtype(inputs),
        "BLOCK_M": height,
        "RANKS": min(RANKS, triton.next_power_of_2(rank)),
    }
    _shrink[(row_tiles * rank_tiles, parts)](
        inputs, stack.down, sums, rows.order, rows.offsets, adapters, count, width, rank,
        row_tiles, part_steps, inputs.stride(0), STEP=STEP, **shared, num_warps=4,
    )  # fmt: skip
    columns = outputs.shape[1]
    _expand[(row_tiles, triton.cdiv(columns, OUTPUTS))](
        sums, stack.up, outputs, rows.order, rows.offsets, adapters, count, columns, rank,
        parts, outputs.stride(0), OUTPUTS=OUTPUTS, **shared, num_warps=4,
    )  # fmt: skip
    return outputs


def _parts(rows: int, tiles: int, inputs: int, device: torch.device) -> tuple[int, int]:
    """Into how many parts A's inputs are divided, none empty, and steps of each.

    With few rows their number makes no difference, so that results do not depend on what else
    is in the batch.
    """
    steps = triton.cdiv(inputs, STEP)
    wanted = MOST_SPLITS if rows <= FEW_ROWS else multiprocessors_of(device) // tiles
    parts = max(1, min(wanted, steps // LEAST_STEPS, MOST_SPLITS))
    part_steps = triton.cdiv(steps, parts)
    return triton.cdiv(steps, part_steps), part_steps


def adapters_floor(rows: int, stack: AdapterStack, used: int, itemsize: int) -> Floor:
    """`used` of the adapters are read once, with the inputs; outputs are read and written.

    The sums between the launches are not counted.
    """
    _, rank, inputs = stack.down.shape
    outputs = stack.up.shape[1]
    moved = used * rank * (inputs + outputs) + rows * (inputs + 2 * outputs)
    return Floor(bytes=moved * itemsize, operations=2 * rows * rank * (inputs + outputs))


@triton.jit(do_not_specialize=["count", "row_tiles", "part_steps"])
def _shrink(
    inputs, down, sums, order, offsets, adapters, count, width, rank, row_tiles, part_steps,
    stride,
    ADAPTERS: tl.constexpr, OPERAND: tl.constexpr, BLOCK_M: tl.constexpr, RANKS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Program (tile, part): BLOCK_M rows by RANKS of A's outputs, over a part of its inputs."""
    tile, column = tl.program_id(0) % row_tiles, tl.program_id(0) // row_tiles
    adapter, first, end = owner_of(offsets, tile, adapters, BLOCK_M, ADAPTERS)
    if adapter >= adapters:
        return
    at = first + tl.arange(0, BLOCK_M)
    inside = (at < end)[:, None]
    row = tl.load(order + at, mask=at < end, other=0).to(tl.int64)
    rank_at = column * RANKS + tl.arange(0, RANKS)
    wanted, within = (rank_at < rank)[:, None], tl.arange(0, STEP)[None, :]
    row_at = inputs + row[:, None] * stride
    weight_at = down + (adapter.to(tl.int64) * rank + rank_at)[:, None] * width
    part = tl.program_id(1)
    begin = part * part_steps * STEP
    acc = tl.zeros((BLOCK_M, RANKS), tl.float32)
    for k in range(begin, tl.minimum(begin + part_steps * STEP, width), STEP):
        there = k + within < width
        x = tl.load(row_at + k + within, mask=inside & there, other=0.0).to(OPERAND)
        w = tl.load(weight_at + k + within, mask=wanted & there, other=0.0).to(OPERAND)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    to = sums + (part.to(tl.int64) * count + at[:, None]) * rank + rank_at[None, :]
    tl.store(to, acc, mask=inside & (rank_at < rank)[None, :])


@triton.jit(do_not_specialize=["count", "parts"])
def _expand(
    sums, up, outputs, order, offsets, adapters, count, columns, rank, parts, stride,
    ADAPTERS: tl.constexpr, OPERAND: tl.constexpr, BLOCK_M: tl.constexpr, RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Program (tile, columns): B times the sum of the parts, added to the outputs."""
    adapter, first, end = owner_of(offsets, tl.program_id(0), adapters, BLOCK_M, ADAPTERS)
    if adapter >= adapters:
        return
    at = first + tl.arange(0, BLOCK_M)
    inside = (at < end)[:, None]
    row = tl.load(order + at, mask=at < end, other=0).to(tl.int64)
    column = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    wanted, within = column < columns, tl.arange(0, RANKS)[None, :]
    weight_at = up + (adapter.to(tl.int64) * columns + column)[:, None] * rank
    acc = tl.zeros((BLOCK_M, OUTPUTS), tl.float32)
    for r in range(0, rank, RANKS):
        there = r + within < rank
        inner = tl.zeros((BLOCK_M, RANKS), tl.float32)
        for part in range(parts):
            from_ = sums + (tl.cast(part, tl.int64) * count + at[:, None]) * rank + r + within
            inner += tl.load(from_, mask=inside & there, other=0.0)
        inner = inner.to(outputs.dtype.element_ty).to(OPERAND)
        w = tl.load(weight_at + r + within, mask=wanted[:, None] & there, other=0.0)
        acc = tl.dot(inner, tl.trans(w.to(OPERAND)), acc, input_precision="ieee")
    place = outputs + row[:, None] * stride + column[None, :]
    mask = inside & wanted[None, :]
    acc += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, acc.to(outputs.dtype.element_ty), mask=mask)
