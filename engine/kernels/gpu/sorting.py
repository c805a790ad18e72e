"""Sorts tokens by expert, and adds up their experts' weighted results, on the device.

Twins: engine/kernels/products.py:TorchProducts. Floors: `sort_floor` and `combine_floor`. Both
kernels are short compared with the experts' products, and with few tokens both are bound by the
time of a launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor

ORDER_BYTES = WEIGHT_BYTES = 4
CHUNK = 1024  # choices that a program reads at once
WIDTH = 1024  # numbers of a token that a program adds up


@triton.jit(do_not_specialize=["count"])
def _sort(chosen, order, offsets, count, experts, CHUNK: tl.constexpr):
    """A program for each expert, which counts the choices before its own, then writes those."""
    expert = tl.program_id(0)
    within = tl.arange(0, CHUNK)
    before = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, count, CHUNK):
        ids = tl.load(chosen + first + within, mask=first + within < count, other=experts)
        before += (ids < expert).to(tl.int32)
    place = tl.sum(before, 0)
    tl.store(offsets + expert, place)
    if expert == experts - 1:
        tl.store(offsets + experts, count)
    for first in range(0, count, CHUNK):
        ids = tl.load(chosen + first + within, mask=first + within < count, other=experts)
        ours = (ids == expert).to(tl.int32)
        rank = tl.cumsum(ours, 0)
        tl.store(order + place + rank - 1, first + within, mask=ours > 0)
        place += tl.sum(ours, 0)


@triton.jit
def _combine(answers, weights, mixed, size, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < size
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in range(TOP_K):
        answer = tl.load(answers + (token * TOP_K + choice) * size + at, mask=there, other=0.0)
        total += answer.to(tl.float32) * tl.load(weights + token * TOP_K + choice)
    tl.store(mixed + token * size + at, total, mask=there)


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Sort [tokens, top_k] expert ids stably: their order, and where each expert's begin.

    Order [tokens * top_k] int32 has indices into `chosen`, flattened; offsets are [experts + 1]
    int32.
    """
    ids = chosen.contiguous()
    order = torch.empty(ids.numel(), dtype=torch.int32, device=ids.device)
    offsets = torch.empty(experts + 1, dtype=torch.int32, device=ids.device)
    _sort[(experts,)](ids, order, offsets, ids.numel(), experts, CHUNK=CHUNK)
    return order, offsets


def combine(answers: Tensor, weights: Tensor) -> Tensor:
    """The sum of [tokens, top_k, size] weighted by float32 [tokens, top_k], in that order."""
    tokens, top_k, size = answers.shape
    answers, weights = answers.contiguous(), weights.float().contiguous()
    mixed = answers.new_empty(tokens, size)
    if tokens:
        block = min(WIDTH, triton.next_power_of_2(size))
        _combine[(tokens, -(-size // block))](
            answers, weights, mixed, size, TOP_K=top_k, BLOCK=block
        )
    return mixed


def sort_floor(chosen: Tensor) -> Floor:
    """Choices are read once, and their order is written once; one comparison for each."""
    return Floor(bytes=chosen.nbytes + chosen.numel() * ORDER_BYTES, operations=chosen.numel())


def combine_floor(answers: Tensor) -> Floor:
    """Results, and a float32 weight for each, are read once; a row is written for each token.

    Each number is multiplied and added.
    """
    tokens, top_k, _ = answers.shape
    moved = answers.nbytes + answers.nbytes // max(1, top_k) + tokens * top_k * WEIGHT_BYTES
    return Floor(bytes=moved, operations=2 * answers.numel())
