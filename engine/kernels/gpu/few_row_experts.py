"""What few tokens' experts make of them, in two launches, without sorting tokens by expert.

    middle[token, choice] = activate(norm(x) W_e^T + b_e)          e: the token's choice
    made = onto + scale * sum over choices: weight * (middle D_e^T + d_e)

Few tokens rarely choose the same expert, so each pair of a token and its choice reads that
expert's weights, as if it were alone. An expert that two of four tokens chose is read twice,
the second time most likely from the L2 cache. Nothing is sorted, no tile is padded to sixteen
rows, and norm, gate, weighted sum and residual have no launches of their own.

The first kernel is that of few_rows.py with one row per program. A program of the second makes
OUTPUTS of a token: it goes through the token's experts one after the other. Each thread adds up
its own products, times the choice's weight, over all experts, and threads add up once, at the
end. So experts' results are not rounded before they are weighted, as they are where each has a
launch: what is rounded is `middle`, the weighted sum, and the result. Addition is always in
order of choice: a token's result does not depend on the others.

Which weights are read depends on the launch before, so none are loaded ahead of its end.

Twin: `mix_few_rows_twin`. Floor: `few_row_experts_floor`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.fusion import Choice, ExpertWeights, Fusion
from engine.kernels.gpu.few_row_sums import (
    by_thread,
    numbers_at,
    numbers_of_word,
    rounded_product,
    store,
    widened,
)
from engine.kernels.gpu.few_rows import CHUNKS, MOST_ROWS, VECTOR_BYTES
from engine.kernels.gpu.gates import ACTIVATIONS, CLAMP, activated, gated_twin
from engine.kernels.gpu.norms import rms_norm_twin
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous

GATES = 4  # of a pair, per program, and as many ups
OUTPUTS = 4  # of a token, per program
CHOICE_BYTES = 4 + 8


def mix_few_rows(
    rows: Tensor, choice: Choice, gate_up: ExpertWeights, down: ExpertWeights, fusion: Fusion
) -> Tensor:
    """[rows, hidden] to the same: see FewRowMixture in engine/kernels/fusion.py.

    ValueError for more than MOST_ROWS rows; KeyError for a gate that is not in ACTIVATIONS. The
    choice must be contiguous, and the last dimension of each other tensor. All but the choice
    and the norm's weight must have one dtype.
    """
    if len(rows) > MOST_ROWS:
        raise ValueError(f"{len(rows)} rows: at most {MOST_ROWS} are few")
    middle = _gates(rows, choice, gate_up, fusion)
    return _mixed(middle, choice, down, fusion)


def _gates(rows: Tensor, choice: Choice, gate_up: ExpertWeights, fusion: Fusion) -> Tensor:
    """[rows, top_k, width]: what each choice's gates and ups make."""
    norm, gate, _ = fusion
    assert gate is not None, "experts have gates"
    weight, bias = gate_up
    count, top_k = choice.experts.shape
    width = weight.shape[1] // 2
    middle = rows.new_empty(count, top_k, width)
    clamp = CLAMP if gate.clamp is None else gate.clamp
    kind = ACTIVATIONS[gate.activation]
    if middle.numel():
        _few_row_gates[(triton.cdiv(width, GATES), count * top_k)](
            rows, None if norm is None else norm.weight, choice.experts, weight, bias, middle,
            width, weight.shape[2], top_k, rows.stride(0), *weight.stride()[:2],
            0.0 if norm is None else norm.eps, *clamp,
            GATE=kind, OUTPUTS=GATES, **_vectors(weight), **pdl_options(),
        )  # fmt: skip
    return middle


def _mixed(middle: Tensor, choice: Choice, down: ExpertWeights, fusion: Fusion) -> Tensor:
    """[rows, hidden]: the choices' results, weighted, added up, and added to the residual."""
    onto, (weight, bias) = fusion.residual, down
    count, top_k, width = middle.shape
    size = weight.shape[1]
    made = middle.new_empty(count, size)
    before = None if onto is None else onto.rows
    if made.numel():
        _few_row_mixture[(triton.cdiv(size, OUTPUTS), count)](
            middle, choice.experts, choice.weights, weight, bias, before, made,
            size, width, *weight.stride()[:2], 0 if before is None else before.stride(0),
            1.0 if onto is None else onto.scale,
            TOP_K=top_k, OUTPUTS=OUTPUTS, **_vectors(weight), **pdl_options(),
        )  # fmt: skip
    return made


def _vectors(weight: Tensor) -> dict[str, int]:
    """How threads load a weight: one vector each at a time."""
    vector = VECTOR_BYTES // weight.element_size()
    each = numbers_of_word(weight)
    return {"CHUNKS": CHUNKS, "VECTOR": vector, "EACH": each, "num_warps": CHUNKS // 32}


def mix_few_rows_twin(
    rows: Tensor, choice: Choice, gate_up: ExpertWeights, down: ExpertWeights, fusion: Fusion
) -> Tensor:
    """The same in plain torch, in float64 if `rows` are."""
    norm, gate, onto = fusion
    assert gate is not None, "experts have gates"
    wide = torch.promote_types(rows.dtype, torch.float32)
    given = rows.to(wide)
    if norm is not None:
        given = rms_norm_twin(given, norm.weight, norm.eps)
    given = given.unsqueeze(1).expand(-1, choice.experts.shape[1], -1)
    both = _of_choices(given, gate_up, choice.experts).to(rows.dtype)
    middle = gated_twin(both, gate.activation, *(gate.clamp or ()))
    answers = _of_choices(middle.to(wide), down, choice.experts)
    made = (answers * choice.weights.to(wide).unsqueeze(-1)).sum(1).to(rows.dtype)
    return made if onto is None else onto.rows.add(made, alpha=onto.scale)


def _of_choices(given: Tensor, of: ExpertWeights, experts: Tensor) -> Tensor:
    """[rows, top_k, inputs] to [rows, top_k, outputs], each by its own expert."""
    made = torch.einsum("tki,tkoi->tko", given, of.weight[experts].to(given.dtype))
    return made if of.bias is None else made + of.bias[experts].to(given.dtype)


def few_row_experts_floor(
    rows: int, used: int, gate_up: tuple[int, ...], itemsize: int, top_k: int
) -> Floor:
    """For `rows` rows that use so many experts with gates and ups [_, 2 * width, hidden].

    Each used weight is read once, rows, residual and what is between the products are read or
    written once. Operations of norm, gate and sum are not counted.
    """
    _, both, hidden = gate_up
    weights = used * (both + both // 2) * hidden
    between = 2 * rows * top_k * (both // 2)
    moved = (weights + between + 3 * rows * hidden) * itemsize + rows * top_k * CHOICE_BYTES
    return Floor(bytes=moved, operations=2 * rows * top_k * (both + both // 2) * hidden)


@triton.jit
def _few_row_gates(
    x, norm, chosen, weight, bias, made, width, inputs, top_k, x_stride, expert_stride,
    weight_stride, eps, alpha, limit,
    GATE: tl.constexpr, OUTPUTS: tl.constexpr, CHUNKS: tl.constexpr, VECTOR: tl.constexpr,
    EACH: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: OUTPUTS gates and ups of one choice of one token."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    pair = tl.program_id(1)
    expert = tl.load(chosen + pair)
    source = x + (pair // top_k).to(tl.int64) * x_stride
    SPAN: tl.constexpr = CHUNKS * VECTOR
    kind: tl.constexpr = weight.dtype.element_ty
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    far = tl.minimum(output, width - 1).to(tl.int64)[:, None] * weight_stride
    gates = weight + expert * expert_stride + far
    ups = gates + tl.cast(width, tl.int64) * weight_stride
    sums = tl.zeros((OUTPUTS, CHUNKS), tl.float32)
    up_sums, squares = sums, tl.zeros((1, CHUNKS), tl.float32)
    numbers = numbers_at(gates, 0, inputs, SPAN, EACH)
    more = numbers_at(ups, 0, inputs, SPAN, EACH)
    for first in range(0, inputs, SPAN):
        at = first + tl.arange(0, SPAN)[None, :]
        given = tl.load(source + at, mask=at < inputs, other=0.0).to(tl.float32)
        if norm is not None:
            squares += by_thread(given * given, VECTOR)
            given *= tl.load(norm + at, mask=at < inputs, other=0.0).to(tl.float32)
        sums += by_thread(widened(numbers, kind, EACH) * given, VECTOR)
        up_sums += by_thread(widened(more, kind, EACH) * given, VECTOR)
        numbers = numbers_at(gates, first + SPAN, inputs, SPAN, EACH)
        more = numbers_at(ups, first + SPAN, inputs, SPAN, EACH)

    factor = 1.0
    if norm is not None:
        factor = 1.0 / tl.sqrt_rn(tl.sum(squares) / inputs + eps)
    own = bias
    if bias is not None:
        own = bias + expert * 2 * width
    gate = rounded_product(tl.sum(sums, 1) * factor, own, output, width, made)
    up = rounded_product(tl.sum(up_sums, 1) * factor, own, output + width, 2 * width, made)
    answer = activated(gate, up, alpha, limit, GATE)
    target = made + pair.to(tl.int64) * width + output
    tl.store(target, answer.to(made.dtype.element_ty), mask=output < width)


@triton.jit
def _few_row_mixture(
    middle, chosen, weights, weight, bias, onto, made, size, width, expert_stride,
    weight_stride, onto_stride, scale,
    TOP_K: tl.constexpr, OUTPUTS: tl.constexpr, CHUNKS: tl.constexpr, VECTOR: tl.constexpr,
    EACH: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    """A program: OUTPUTS of what all of a token's experts make, weighted and added up."""
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    token = tl.program_id(1).to(tl.int64)
    chosen, weights = chosen + token * TOP_K, weights + token * TOP_K
    source = middle + token * TOP_K * width
    SPAN: tl.constexpr = CHUNKS * VECTOR
    kind: tl.constexpr = weight.dtype.element_ty
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    rows = weight + tl.minimum(output, size - 1).to(tl.int64)[:, None] * weight_stride
    sums = tl.zeros((OUTPUTS, CHUNKS), tl.float32)
    numbers = numbers_at(rows + tl.load(chosen) * expert_stride, 0, width, SPAN, EACH)
    choice, first = 0, 0
    for _ in range(TOP_K * tl.cdiv(width, SPAN)):
        at = first + tl.arange(0, SPAN)[None, :]
        given = tl.load(source + choice * width + at, mask=at < width, other=0.0)
        given = given.to(tl.float32) * tl.load(weights + choice)
        sums += by_thread(widened(numbers, kind, EACH) * given, VECTOR)
        first += SPAN
        choice, first = choice + (first >= width), tl.where(first < width, first, 0)
        end = tl.where(choice < TOP_K, width, 0)  # nothing is behind the last
        expert = tl.load(chosen + tl.minimum(choice, TOP_K - 1))
        numbers = numbers_at(rows + expert * expert_stride, first, end, SPAN, EACH)

    total = tl.sum(sums, 1)
    if bias is not None:
        for choice in range(TOP_K):
            own = bias + tl.load(chosen + choice) * size + output
            share = tl.load(own, mask=output < size, other=0.0).to(tl.float32)
            total += tl.load(weights + choice) * share
    store(total, token, token + 1, output, size, onto, onto_stride, scale, made)
