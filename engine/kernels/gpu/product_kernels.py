"""The kernels behind products.py: one tile of the result for each program.

A program finds its tile's expert in the offsets, on the device. As many tiles are launched as
there can be at most, and the surplus ones return at once.
"""

import triton
import triton.language as tl


@triton.jit
def _place(tile, row_tiles, column_tiles, BAND: tl.constexpr):
    """A tile's row and column: BAND rows by all columns, then the next BAND."""
    in_band = BAND * column_tiles
    first = tile // in_band * BAND
    height = tl.minimum(row_tiles - first, BAND)
    return first + tile % in_band % height, tile % in_band // height


@triton.jit
def owner_of(offsets, tile, experts, BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr):
    """A row tile's expert (`experts`: none), its first row, and the end of its rows."""
    every = tl.arange(0, EXPERTS)
    known = every < experts
    firsts = tl.load(offsets + every, mask=known, other=0)
    ends = tl.load(offsets + every + 1, mask=known, other=0)
    tiles = (ends - firsts + BLOCK_M - 1) // BLOCK_M
    through = tl.cumsum(tiles, 0)
    expert = tl.sum((known & (through <= tile)).to(tl.int32), 0)
    ours = every == expert
    before = tl.sum(tl.where(ours, through - tiles, 0), 0)
    first = tl.sum(tl.where(ours, firsts, 0), 0) + (tile - before) * BLOCK_M
    return expert, first, tl.sum(tl.where(ours, ends, 0), 0)


@triton.jit
def _whole_steps(walk, acc, STEP: tl.constexpr, OPERAND: tl.constexpr, FP8: tl.constexpr):
    """Sum over inputs span[0] .. span[1] - 1, without scales in between.

    `walk` is a tuple: where the tile's rows and weights begin, masks of those that exist, the
    span, and the total of inputs.
    """
    row_at, inside, weight_at, wanted, span, inputs = walk
    inside, wanted = inside[:, None], wanted[:, None]
    within = tl.arange(0, STEP)[None, :]
    for k in range(span[0], span[1], STEP):
        there = k + within < inputs
        x = tl.load(row_at + k + within, mask=inside & there, other=0.0).to(OPERAND)
        w = tl.load(weight_at + k + within, mask=wanted & there, other=0.0).to(OPERAND)
        if FP8:  # Hopper's fp8 tensor cores keep 14 bits of a sum, so sum outside of them
            acc = tl.dot(x, tl.trans(w), acc, max_num_imprecise_acc=STEP)
        else:
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    return acc


@triton.jit
def _blocked_steps(
    walk, acc, row_scale_at, row_scale_step, scale_at, scale_step,
    STEP: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """Sum over inputs; STEP inputs of a row, and of an output, share a scale."""
    row_at, inside, weight_at, wanted, span, inputs = walk
    inside, wanted = inside[:, None], wanted[:, None]
    within = tl.arange(0, STEP)[None, :]
    for k in range(span[0], span[1], STEP):
        there = k + within < inputs
        x = tl.load(row_at + k + within, mask=inside & there, other=0.0).to(OPERAND)
        w = tl.load(weight_at + k + within, mask=wanted & there, other=0.0).to(OPERAND)
        block = k // STEP
        row_scale = tl.load(row_scale_at + block * row_scale_step, mask=inside, other=0.0)
        scale = tl.load(scale_at + block * scale_step, mask=wanted, other=0.0)
        acc += tl.dot(x, tl.trans(w)) * row_scale * tl.trans(scale)
    return acc


@triton.jit
def raised(number, dtype: tl.constexpr):
    """An integer 0 .. 15 plus 2^7, 2^10 or 2^23, where neighbouring floats differ by one.

    It is or-ed into the float's bits, because a conversion takes several instructions. The
    difference to `raised_middle`, or to another raised number, is exact.
    """
    if dtype == tl.bfloat16:
        above = (number.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True)
    elif dtype == tl.float16:
        above = (number.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True)
    else:
        above = (number.to(tl.uint32) | 0x4B000000).to(tl.float32, bitcast=True)
    return above


@triton.jit
def raised_middle(dtype: tl.constexpr):
    """8, raised, as [1, 1]: a compile-time constant."""
    if dtype == tl.bfloat16:
        above = 2.0**7
    elif dtype == tl.float16:
        above = 2.0**10
    else:
        above = 2.0**23
    return tl.full((1, 1), above + 8, tl.float32).to(dtype)


@triton.jit
def _four_bit_steps(
    walk, acc, scale_at, zero_at, scale_step, order,
    STEP: tl.constexpr, OPERAND: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """Sum over int4 inputs; STEP inputs of an output share a scale (see Int4Weight).

    `order` has the inputs' places in a row, -1: none; None: consecutive.
    """
    row_at, inside, weight_at, wanted, span, inputs = walk
    inside, wanted = inside[:, None], wanted[:, None]
    HALF: tl.constexpr = STEP // 2
    within = tl.arange(0, HALF)[None, :]
    for k in range(span[0], span[1], STEP):
        low_at, high_at = k + within, k + HALF + within
        is_low, is_high = low_at < inputs, high_at < inputs
        if order is not None:
            low_at = tl.load(order + low_at, mask=is_low, other=0)
            high_at = tl.load(order + high_at, mask=is_high, other=0)
            is_low, is_high = is_low & (low_at >= 0), is_high & (high_at >= 0)
        low = tl.load(row_at + low_at, mask=inside & is_low, other=0.0)
        high = tl.load(row_at + high_at, mask=inside & is_high, other=0.0)
        both = tl.load(weight_at + k // 2 + within, mask=wanted, other=0)
        group = (k // STEP) * scale_step
        if ZEROS:
            zero = raised(tl.load(zero_at + group, mask=wanted, other=0), OPERAND)
        else:
            zero = raised_middle(OPERAND)
        first = raised(both & 15, OPERAND) - zero
        second = raised(both >> 4, OPERAND) - zero
        part = tl.dot(low.to(OPERAND), tl.trans(first), input_precision="ieee")
        part = tl.dot(high.to(OPERAND), tl.trans(second), part, input_precision="ieee")
        scale = tl.load(scale_at + group, mask=wanted, other=0.0).to(tl.float32)
        acc += part * tl.trans(scale)
    return acc


@triton.jit
def _sources_of(at, inside, sources, times):
    """The input row of each sorted row; see Route."""
    if sources is not None:
        return tl.load(sources + at, mask=inside, other=0) // times
    return at


@triton.jit
def _targets_of(at, inside, targets):
    """The output row of each sorted row; see Route."""
    if targets is not None:
        return tl.load(targets + at, mask=inside, other=0)
    return at


@triton.jit
def _sums(
    walk, acc, source, far, column_at, row_scales, scales, zeros, order, strides,
    FORMAT: tl.constexpr, OPERAND: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The tile's sums over its inputs, with the scales of its format.

    `far` is the expert, and `order` its own. `strides` are those of row scales, by row and by
    step, and of scales, by expert and by step.
    """
    row_scale_stride, row_scale_step, expert_stride, scale_step = strides
    if FORMAT == 0:
        acc = _whole_steps(walk, acc, STEP, OPERAND, False)
    elif FORMAT == 1:
        acc = _whole_steps(walk, acc, STEP, OPERAND, True)
        row_scale_at = row_scales + source * row_scale_stride
        row_scale = tl.load(row_scale_at, mask=walk[1], other=0.0)
        scale = tl.load(scales + far * expert_stride + column_at, mask=walk[3], other=0.0)
        acc = acc * row_scale[:, None] * scale[None, :]
    elif FORMAT == 2:
        row_scale_at = row_scales + source[:, None].to(tl.int64) * row_scale_stride
        scale_at = scales + far * expert_stride + column_at[:, None]
        acc = _blocked_steps(
            walk, acc, row_scale_at, row_scale_step, scale_at, scale_step, STEP, OPERAND
        )
    else:
        scale_at = far * expert_stride + column_at[:, None]
        acc = _four_bit_steps(
            walk, acc, scales + scale_at, zeros + scale_at if zeros is not None else scales,
            scale_step, order, STEP, OPERAND, zeros is not None,
        )  # fmt: skip
    return acc


@triton.jit(  # arguments that depend on the number of rows are not specialized
    do_not_specialize=["num_rows", "row_tiles", "split_steps", "row_scale_step"]
)
def multiply_tiles(
    rows, row_scales, weight, scales, zeros, order, bias, answers, offsets, sources, targets,
    times,
    num_rows, outputs, inputs, experts, row_tiles, column_tiles, split_steps,
    row_stride, row_scale_stride, row_scale_step, expert_stride, output_stride,
    expert_scale_stride, scale_stride, answer_stride,
    FORMAT: tl.constexpr, GROUPED: tl.constexpr, EXPERTS: tl.constexpr, OPERAND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STEP: tl.constexpr, BAND: tl.constexpr,
):  # fmt: skip
    """Program (tile, part): BLOCK_M rows by BLOCK_N outputs, over split_steps of inputs."""
    tile, column = _place(tl.program_id(0), row_tiles, column_tiles, BAND)
    expert, first, end = 0, tile * BLOCK_M, num_rows
    if GROUPED:
        expert, first, end = owner_of(offsets, tile, experts, BLOCK_M, EXPERTS)
        if expert >= experts:
            return
    at = first + tl.arange(0, BLOCK_M)
    inside = at < end
    source = _sources_of(at, inside, sources, times)
    column_at = column * BLOCK_N + tl.arange(0, BLOCK_N)
    wanted, far = column_at < outputs, tl.cast(expert, tl.int64)
    split = tl.program_id(1)
    span = split * split_steps * STEP, tl.minimum((split + 1) * split_steps * STEP, inputs)
    row_at = rows + source.to(tl.int64)[:, None] * row_stride
    weight_at = weight + far * expert_stride + column_at.to(tl.int64)[:, None] * output_stride
    acc = _sums(
        (row_at, inside, weight_at, wanted, span, inputs),
        tl.zeros((BLOCK_M, BLOCK_N), tl.float32), source, far, column_at,
        row_scales, scales, zeros, order + far * inputs if order is not None else None,
        (row_scale_stride, row_scale_step, expert_scale_stride, scale_stride),
        FORMAT, OPERAND, STEP,
    )  # fmt: skip
    if bias is not None:
        offset = tl.load(
            bias + far * outputs + column_at, mask=wanted & (split == 0), other=0.0
        )
        acc += offset.to(tl.float32)[None, :]
    target = _targets_of(at, inside, targets)  # after the sums, which fill the registers
    target_at = target.to(tl.int64)[:, None] * answer_stride + column_at[None, :]
    part = answers + split.to(tl.int64) * num_rows * answer_stride  # of a known divisor
    tl.store(part + target_at, acc, mask=inside[:, None] & wanted[None, :])


@triton.jit(do_not_specialize=["rows", "splits"])
def add_up(parts, answers, rows, outputs, splits, BLOCK: tl.constexpr):
    """Sum [splits, rows, outputs] float32 to [rows, outputs], in order of the splits."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    count = tl.cast(rows, tl.int64) * outputs
    there = at < count
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(parts + split * count + at, mask=there, other=0.0)
    tl.store(answers + at, total, mask=there)
