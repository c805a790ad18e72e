"""A product of few rows with an unquantized weight, fused with norm, gate and residual.

    made = onto + scale * activate(norm(x) W^T + b)      (all but the product are optional)

A decode step of few sequences reads all weights and does little else. What it takes beyond that
is the gaps between launches: each starts after the end of the one before, and memory is idle
in between. So norm, gate and residual have no launches of their own here.

A program makes OUTPUTS of the product for all rows: each weight is read once, sixteen bytes per
thread and load, with an evict-first hint, and multiplied in float32 without tensor cores, which
would multiply rows that do not exist. Every program reads the rows, from the nearest cache. A
norm's factor is one number per row, so it is applied after the sum: nothing waits for it, and
normed rows are not rounded. The product is rounded before its gate and before the residual is
added, as with separate launches.

Weights in fp8 have a kernel of their own: few_rows_fp8.py.

Twin: `few_rows_twin`. Floor: `few_rows_floor`.
"""

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.fusion import NO_FUSION, Fusion, RowNorm
from engine.kernels.gpu.few_row_sums import (
    by_thread,
    numbers_at,
    numbers_of_word,
    rounded_product,
    store,
    widened,
)
from engine.kernels.gpu.gates import ACTIVATIONS, CLAMP, activated, gated_twin
from engine.kernels.gpu.norms import rms_norm_twin
from engine.kernels.gpu.overlapping import (
    bring,
    launch_dependents,
    pdl_options,
    steps_brought,
    wait_for_previous,
)
from engine.kernels.weights import Fp8Weight, quantized_inputs

MOST_ROWS = 4
OUTPUTS = 8  # per program, before a gate halves them
SCORES = 2  # of a router, per program
CHUNKS = 128  # vectors of each row and output at a time, one per thread
VECTOR_BYTES = 16
NO_GATE = -1


def few_rows(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, fusion: Fusion = NO_FUSION
) -> Tensor:
    """[rows, inputs] by [outputs, inputs] to [rows, outputs]; behind a gate, half of them.

    ValueError for more than MOST_ROWS rows; KeyError for a gate that is not in ACTIVATIONS.
    `bias` [outputs]. The last dimension of each tensor must be contiguous, and all but the
    norm's weight must have one dtype.
    """
    outputs = OUTPUTS if fusion.gate is None else OUTPUTS // 2
    return _launch(rows, weight, bias, fusion, rows.dtype, outputs)


def few_row_scores(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, norm: RowNorm | None = None
) -> Tensor:
    """[rows, inputs] by [experts, inputs] to a router's scores [rows, experts].

    They are of the dtype of `weight`, float32 outside tests, whatever that of `rows`. Weights
    of experts are few, so each program makes two outputs. ValueError as `few_rows`.
    """
    return _launch(rows, weight, bias, Fusion(norm), weight.dtype, SCORES)


def few_row_scores_twin(
    rows: Tensor, weight: Tensor, bias: Tensor | None = None, norm: RowNorm | None = None
) -> Tensor:
    """The same in plain torch."""
    given = rows.to(weight.dtype)
    if norm is not None:
        given = rms_norm_twin(given, norm.weight, norm.eps)
    return F.linear(given, weight, bias)


def _launch(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    fusion: Fusion,
    dtype: torch.dtype,
    outputs: int,
) -> Tensor:
    """A result in `dtype`; each program makes so many `outputs`."""
    norm, gate, onto = fusion
    count, inputs = rows.shape
    if count > MOST_ROWS:
        raise ValueError(f"{count} rows: at most {MOST_ROWS} are few")
    width = weight.shape[0] // (1 if gate is None else 2)
    made = torch.empty((count, width), dtype=dtype, device=rows.device)
    if not made.numel():
        return made
    kind = NO_GATE if gate is None else ACTIVATIONS[gate.activation]
    clamp = CLAMP if gate is None or gate.clamp is None else gate.clamp
    before = None if onto is None else onto.rows
    vector = VECTOR_BYTES // weight.element_size()
    steps, step_bytes = (
        triton.cdiv(inputs, CHUNKS * vector),
        len(weight) * CHUNKS * VECTOR_BYTES,
    )
    _few_rows[(triton.cdiv(width, outputs),)](
        rows, None if norm is None else norm.weight, weight, bias, before, made,
        count, width, inputs, rows.stride(0), weight.stride(0),
        0 if before is None else before.stride(0),
        0.0 if norm is None else norm.eps, 1.0 if onto is None else onto.scale, *clamp,
        GATE=kind, ROWS=triton.next_power_of_2(count), OUTPUTS=outputs, CHUNKS=CHUNKS,
        VECTOR=vector, EACH=numbers_of_word(weight), BROUGHT=steps_brought(step_bytes, steps),
        num_warps=CHUNKS // 32, **pdl_options(),
    )  # fmt: skip
    return made


def few_rows_twin(
    rows: Tensor,
    weight: Tensor | Fp8Weight,
    bias: Tensor | None = None,
    fusion: Fusion = NO_FUSION,
) -> Tensor:
    """The same in plain torch, in float64 if `rows` are; also of `few_rows_fp8`.

    For an fp8 weight normed rows are rounded to their dtype, and quantized.
    """
    norm, gate, onto = fusion
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    if norm is not None:
        wide = rms_norm_twin(wide, norm.weight, norm.eps)
    if isinstance(weight, Fp8Weight):
        made = quantized_inputs(wide.to(rows.dtype), weight) @ weight.whole(0, wide.dtype).T
    else:
        made = wide @ weight.to(wide.dtype).T
    made = (made if bias is None else made + bias).to(rows.dtype)
    if gate is not None:
        made = gated_twin(made, gate.activation, *(gate.clamp or ()))
    return made if onto is None else onto.rows.add(made, alpha=onto.scale)


def few_rows_floor(
    rows: int,
    outputs: int,
    inputs: int,
    itemsize: int,
    *,
    gate: bool = False,
    onto: bool = False,
) -> Floor:
    """Weight, rows and residual are read once, and results are written once.

    The few operations per row that are fused with the product are not counted.
    """
    width = outputs // 2 if gate else outputs
    moved = outputs * inputs + rows * (inputs + width * (2 if onto else 1))
    return Floor(bytes=moved * itemsize, operations=2 * rows * outputs * inputs)


@triton.jit(do_not_specialize=["rows"])
def _few_rows(
    x, norm, weight, bias, onto, made, rows, width, inputs, x_stride, weight_stride,
    onto_stride, eps, scale, alpha, limit,
    GATE: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, CHUNKS: tl.constexpr,
    VECTOR: tl.constexpr, EACH: tl.constexpr, BROUGHT: tl.constexpr = 0,
    OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: OUTPUTS of all rows; missing rows are read as the last one.

    A step's weights are loaded at the end of the step before, the first before the previous
    launch has ended, as no kernel writes them. Each thread has its own sum per row, and these
    are added up at the end.
    """
    SPAN: tl.constexpr = CHUNKS * VECTOR
    kind: tl.constexpr = weight.dtype.element_ty
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    far = tl.minimum(output, width - 1).to(tl.int64)[:, None] * weight_stride
    gates, ups = weight + far, weight + tl.cast(width, tl.int64) * weight_stride + far
    sums = (tl.zeros((OUTPUTS, CHUNKS), tl.float32),) * ROWS
    up_sums, squares = sums, (tl.zeros((1, CHUNKS), tl.float32),) * ROWS
    launch_dependents(OVERLAPPED)
    numbers = numbers_at(gates, 0, inputs, SPAN, EACH)
    more = numbers_at(ups, 0, inputs, SPAN, EACH) if GATE >= 0 else numbers
    _bring(gates, ups, inputs, GATE, SPAN, BROUGHT)
    wait_for_previous(OVERLAPPED)
    for first in range(0, inputs, SPAN):
        at = first + tl.arange(0, SPAN)[None, :]
        given = _rows(x, rows, x_stride, at, at < inputs, ROWS)
        if norm is not None:
            factors = tl.load(norm + at, mask=at < inputs, other=0.0).to(tl.float32)
            given, squares = _scaled(given, factors, squares, ROWS, VECTOR)
        sums = _multiplied(sums, widened(numbers, kind, EACH), given, ROWS, VECTOR)
        if GATE >= 0:
            up_sums = _multiplied(up_sums, widened(more, kind, EACH), given, ROWS, VECTOR)
        numbers = numbers_at(gates, first + SPAN, inputs, SPAN, EACH)
        more = numbers_at(ups, first + SPAN, inputs, SPAN, EACH) if GATE >= 0 else numbers

    for row in tl.static_range(ROWS):
        factor = 1.0
        if norm is not None:
            factor = 1.0 / tl.sqrt_rn(tl.sum(squares[row]) / inputs + eps)
        answer = rounded_product(tl.sum(sums[row], 1) * factor, bias, output, width, made)
        if GATE >= 0:
            up = rounded_product(
                tl.sum(up_sums[row], 1) * factor, bias, output + width, 2 * width, made
            )
            answer = activated(answer, up, alpha, limit, GATE)
        store(answer, row, rows, output, width, onto, onto_stride, scale, made)


@triton.jit
def _bring(
    gates, ups, inputs, GATE: tl.constexpr, SPAN: tl.constexpr, BROUGHT: tl.constexpr
):  # fmt: skip
    """Ask for the weights of the steps behind the first, to be brought to L2."""
    for step in tl.static_range(1, BROUGHT + 1):
        bring(gates, step * SPAN, inputs, SPAN)
        if GATE >= 0:
            bring(ups, step * SPAN, inputs, SPAN)


@triton.jit
def _rows(x, rows, stride, at, there, ROWS: tl.constexpr):
    """Load the rows, [1, CHUNKS, VECTOR] float32 each, spread over threads like a weight."""
    read = ()
    for row in tl.static_range(ROWS):
        source = x + tl.cast(tl.minimum(row, rows - 1), tl.int64) * stride
        read += (tl.load(source + at, mask=there, other=0.0).to(tl.float32),)  # type: ignore[assignment]
    return read


@triton.jit
def _scaled(given, factors, squares, ROWS: tl.constexpr, VECTOR: tl.constexpr):
    """Rows times the norm's weight, and the sums of their squares, for the norm's factor."""
    scaled, sums = (), ()
    for row in tl.static_range(ROWS):
        sums += (squares[row] + by_thread(given[row] * given[row], VECTOR),)  # type: ignore[assignment]
        scaled += (given[row] * factors,)  # type: ignore[assignment]
    return scaled, sums


@triton.jit
def _multiplied(sums, wide, given, ROWS: tl.constexpr, VECTOR: tl.constexpr):
    """Add the products to the sums; a vector is summed within one thread."""
    added = ()
    for row in tl.static_range(ROWS):
        added += (sums[row] + by_thread(wide * given[row], VECTOR),)  # type: ignore[assignment]
    return added
