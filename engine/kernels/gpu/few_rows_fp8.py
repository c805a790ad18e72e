"""A product of few rows with an fp8 weight, fused with norm, gate and residual.

    made = onto + scale * activate(quantized(norm(x)) W^T + b)   (all but the product optional)

As few_rows.py, for rows that are quantized (rounding.py). The normed row is rounded to its
dtype, then to e4m3 with a scale for the row, or for each group of it, as in separate launches:
so a sequence alone differs from one in a batch by the order of sums only, which seldom makes
a norm, or the scale behind it, another number.

A program quantizes the rows itself, while its first weights are on their way. Rows of up to
MOST_HELD steps are quantized once and stay in registers, and there are as many programs as run
at a time, each of which makes outputs until there are no more. Longer rows are quantized in
each step; behind a product onto the residual they are read twice, for their scale and then to
be multiplied.

Twin: `few_rows_twin`. Floor: `few_rows_fp8_floor`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.fusion import NO_FUSION, Fusion
from engine.kernels.gpu.few_row_sums import (
    by_thread,
    numbers_at,
    numbers_of_word,
    rounded_product,
    store,
    widened,
)
from engine.kernels.gpu.gates import ACTIVATIONS, CLAMP, activated
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous
from engine.kernels.gpu.rounding import LONGEST
from engine.kernels.gpu.rows_in_registers import (
    fitted,
    held_rows,
    row_facts,
    unpacked,
)
from engine.kernels.gpu.tiles import multiprocessors_of
from engine.kernels.rows import E4M3_MAX, LEAST_SCALE
from engine.kernels.weights import Fp8Weight

MOST_FP8_ROWS = 2
OUTPUTS = 8  # of the weight, per program at a time; behind a gate, half of them are ups
CHUNKS = 128  # vectors of each row and output at a time, one per thread
VECTOR = 16  # numbers of a weight that a thread loads at once
MOST_HELD = 2  # steps; with more, registers spill
REGISTERS = 64 * 1024  # of a multiprocessor
NO_GATE = -1


def few_rows_fp8(
    rows: Tensor, weight: Fp8Weight, bias: Tensor | None = None, fusion: Fusion = NO_FUSION
) -> Tensor:
    """[rows, inputs] by [1, outputs, inputs] to [rows, outputs]; behind a gate, half of them.

    ValueError for more than MOST_FP8_ROWS rows; KeyError for a gate that is not in ACTIVATIONS.
    See `few_rows`.
    """
    norm, gate, onto = fusion
    count, inputs = rows.shape
    if count > MOST_FP8_ROWS:
        raise ValueError(f"{count} rows: at most {MOST_FP8_ROWS} are few for an fp8 weight")
    width = weight.shape[1] // (1 if gate is None else 2)
    made = torch.empty((count, width), dtype=rows.dtype, device=rows.device)
    if not made.numel():
        return made
    kind = NO_GATE if gate is None else ACTIVATIONS[gate.activation]
    clamp = CLAMP if gate is None or gate.clamp is None else gate.clamp
    before = None if onto is None else onto.rows
    tiles = triton.cdiv(width, OUTPUTS if gate is None else OUTPUTS // 2)
    steps = triton.cdiv(inputs, CHUNKS * VECTOR)
    held = steps <= MOST_HELD
    at_once = 3 if held and count > 1 else 4  # programs of a multiprocessor
    most = at_once * multiprocessors_of(rows.device) if held else tiles
    _few_rows_fp8[(min(tiles, most),)](
        rows, None if norm is None else norm.weight, weight.values, weight.scales, bias, before,
        made, count, width, inputs, rows.stride(0), weight.values.stride(1),
        weight.scales.stride(1), 0 if before is None else before.stride(0),
        0.0 if norm is None else norm.eps, 1.0 if onto is None else onto.scale, *clamp,
        GATE=kind, ROWS=triton.next_power_of_2(count), OUTPUTS=OUTPUTS, CHUNKS=CHUNKS,
        VECTOR=VECTOR, GROUP=weight.row_group, MOST=E4M3_MAX, LEAST=LEAST_SCALE,
        STEPS=steps if held else 0, EACH=numbers_of_word(weight.values),
        WIDE=min(triton.next_power_of_2(inputs), LONGEST if norm is None else LONGEST // 2),
        num_warps=CHUNKS // 32,
        maxnreg=REGISTERS // (CHUNKS * at_once) // 8 * 8, **pdl_options(),
    )  # fmt: skip
    return made


def few_rows_fp8_floor(
    rows: int, weight: Fp8Weight, itemsize: int, *, gate: bool = False, onto: bool = False
) -> Floor:
    """Weight with its scales, rows and residual are read once, and results are written once.

    The few operations per row that are fused with the product are not counted.
    """
    _, outputs, inputs = weight.shape
    width = outputs // 2 if gate else outputs
    passed = rows * (inputs + width * (2 if onto else 1)) * itemsize
    stored = weight.values.nbytes + weight.scales.nbytes
    return Floor(bytes=stored + passed, operations=2 * rows * outputs * inputs)


@triton.jit(do_not_specialize=["rows"])
def _few_rows_fp8(
    x, norm, weight, scales, bias, onto, made, rows, width, inputs, x_stride, weight_stride,
    scale_stride, onto_stride, eps, scale, alpha, limit,
    GATE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, CHUNKS: tl.constexpr,
    VECTOR: tl.constexpr, GROUP: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
    STEPS: tl.constexpr, EACH: tl.constexpr, WIDE: tl.constexpr,
    OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: a tile of OUTPUTS of all rows; with STEPS, tiles until there are no more.

    Weights are loaded one step ahead, the first of them before the previous launch has ended,
    as no kernel writes them. With groups their scales are, too.
    """
    SPAN: tl.constexpr = CHUNKS * VECTOR
    MADE: tl.constexpr = OUTPUTS if GATE < 0 else OUTPUTS // 2
    tile, tiles, others = tl.program_id(0), tl.cdiv(width, MADE), tl.num_programs(0)
    nothing = (tl.zeros((OUTPUTS, CHUNKS), tl.float32),) * ROWS
    source = _source(tile, width, MADE, GATE)
    launch_dependents(OVERLAPPED)
    numbers = _numbers(weight, source, weight_stride, 0, inputs, SPAN, EACH)
    factors = _factors(scales, source, 0, scale_stride, inputs, CHUNKS, VECTOR, GROUP)
    wait_for_previous(OVERLAPPED)
    facts = row_facts(x, norm, rows, x_stride, inputs, eps, ROWS, GROUP, WIDE, MOST, LEAST)
    read = weight, scales, weight_stride, scale_stride
    into = bias, onto, made, onto_stride, scale, alpha, limit
    if STEPS > 0:
        held = held_rows(
            x, norm, facts, rows, x_stride, inputs,
            STEPS, ROWS, CHUNKS, VECTOR, GROUP, MOST, LEAST,
        )  # fmt: skip
        for tile in range(tl.program_id(0), tiles, others):
            sums, numbers, factors = _sums_of_held(
                nothing, numbers, factors, read, held, tile, tiles, others, width, inputs,
                GATE, ROWS, MADE, CHUNKS, VECTOR, GROUP, STEPS, EACH,
            )  # fmt: skip
            _finish(sums, facts, factors, into, tile, rows, width, GATE, ROWS, MADE, GROUP)
    else:
        sums, factors = _sums(
            nothing, numbers, factors, read, source, (x, norm, facts, rows, x_stride), inputs,
            ROWS, CHUNKS, VECTOR, GROUP, MOST, LEAST, EACH,
        )  # fmt: skip
        _finish(sums, facts, factors, into, tile, rows, width, GATE, ROWS, MADE, GROUP)


@triton.jit
def _sums_of_held(
    sums, numbers, factors, read, held, tile, tiles, others, width, inputs,
    GATE: tl.constexpr, ROWS: tl.constexpr, MADE: tl.constexpr, CHUNKS: tl.constexpr,
    VECTOR: tl.constexpr, GROUP: tl.constexpr, STEPS: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """A tile's sums over rows that are `held`; and what is loaded of this program's next tile.

    Without groups, `factors` are this tile's.
    """
    span: tl.constexpr = CHUNKS * VECTOR
    source = _source(tile, width, MADE, GATE)
    if GROUP is None:
        factors = _factors(read[1], source, 0, 0, inputs, CHUNKS, VECTOR, GROUP)
    for step in tl.static_range(STEPS):
        first, there = (step + 1) * span, inputs
        if step + 1 == STEPS:
            first, source = 0, _source(tile + others, width, MADE, GATE)
            there = tl.where(tile + others < tiles, inputs, 0)
        ahead, factors_ahead = _ahead(
            read, factors, source, first, there, CHUNKS, VECTOR, GROUP, EACH
        )
        sums = _added(sums, numbers, factors, held[step], ROWS, VECTOR, GROUP, EACH)
        numbers, factors = ahead, factors_ahead
    return sums, numbers, factors


@triton.jit
def _sums(
    sums, numbers, factors, read, source, given, inputs,
    ROWS: tl.constexpr, CHUNKS: tl.constexpr, VECTOR: tl.constexpr, GROUP: tl.constexpr,
    MOST: tl.constexpr, LEAST: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """A tile's sums, and without groups its `factors`; rows are quantized in each step."""
    x, norm, facts, rows, x_stride = given
    span: tl.constexpr = CHUNKS * VECTOR
    for first in range(0, inputs, span):
        ahead, factors_ahead = _ahead(
            read, factors, source, first + span, inputs, CHUNKS, VECTOR, GROUP, EACH
        )
        fit = fitted(
            x, norm, facts, first, rows, x_stride, inputs,
            ROWS, CHUNKS, VECTOR, GROUP, MOST, LEAST,
        )  # fmt: skip
        sums = _added(sums, numbers, factors, fit, ROWS, VECTOR, GROUP, EACH)
        numbers, factors = ahead, factors_ahead
    return sums, factors


@triton.jit
def _source(tile, width, MADE: tl.constexpr, GATE: tl.constexpr):
    """The outputs of the weight that a tile multiplies; with a gate, gates and ups in turn."""
    source = tl.minimum(tile * MADE + tl.arange(0, MADE), width - 1)
    if GATE >= 0:
        source = tl.reshape(tl.join(source, source + width), (2 * MADE,))
    return source


@triton.jit
def _numbers(weight, source, stride, first, inputs, SPAN: tl.constexpr, EACH: tl.constexpr):
    """A step of these outputs' weights, from input `first` on."""
    at_output = weight + source.to(tl.int64)[:, None] * stride
    return numbers_at(at_output, first, inputs, SPAN, EACH)


@triton.jit
def _ahead(
    read, factors, source, first, inputs,
    CHUNKS: tl.constexpr, VECTOR: tl.constexpr, GROUP: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """A step's numbers, and with groups their scales; otherwise the same `factors`.

    `read` is the weight and its scales, and the strides of both.
    """
    weight, scales, weight_stride, scale_stride = read
    span: tl.constexpr = CHUNKS * VECTOR
    numbers = _numbers(weight, source, weight_stride, first, inputs, span, EACH)
    if GROUP is not None:
        factors = _factors(scales, source, first, scale_stride, inputs, CHUNKS, VECTOR, GROUP)
    return numbers, factors


@triton.jit
def _factors(
    scales, source, first, stride, inputs,
    CHUNKS: tl.constexpr, VECTOR: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Scales of the weight: for each output, or for the group of each thread's inputs.

    The latter are read as a line: of a tile, Triton 3.6 would give each thread a part of the
    outputs only, and exchange the sums of each step for that.
    """
    if GROUP is None:
        read = tl.load(scales + source)
    else:
        at = first + tl.arange(0, CHUNKS)[None, :] * VECTOR
        place = scales + source[:, None] + at // GROUP * stride
        line: tl.constexpr = (place.shape[0] * CHUNKS,)
        there = tl.reshape(tl.broadcast_to(at < inputs, place.shape), line)
        read = tl.load(tl.reshape(place, line), mask=there, other=0.0)
        read = tl.reshape(read, place.shape)
    return read


@triton.jit
def _added(
    sums, numbers, factors, given, ROWS: tl.constexpr, VECTOR: tl.constexpr,
    GROUP: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Add a step's products to the sums."""
    wide, added = widened(numbers, tl.float8e4nv, EACH), ()
    for row in tl.static_range(ROWS):
        part = by_thread(wide * unpacked(given[row][0]), VECTOR)
        if GROUP is not None:
            part *= given[row][1] * factors
        added += (sums[row] + part,)  # type: ignore[assignment]
    return added


@triton.jit
def _finish(
    sums, facts, factors, into, tile, rows, width,
    GATE: tl.constexpr, ROWS: tl.constexpr, MADE: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Add up a tile's sums, and store what gate and residual make of them."""
    bias, onto, made, onto_stride, scale, alpha, limit = into
    output = tile * MADE + tl.arange(0, MADE)
    for row in tl.static_range(ROWS):
        total = tl.sum(sums[row], 1)
        if GROUP is None:
            total = total * facts[row][1] * factors
        if GATE >= 0:
            gate, up = tl.split(tl.reshape(total, (MADE, 2)))
            gate = rounded_product(gate, bias, output, width, made)
            up = rounded_product(up, bias, output + width, 2 * width, made)
            answer = activated(gate, up, alpha, limit, GATE)
        else:
            answer = rounded_product(total, bias, output, width, made)
        store(answer, row, rows, output, width, onto, onto_stride, scale, made)
