"""Chooses and weights a token's experts by the router's logits, in one launch.

A program takes a token, whose scores it holds in registers, and takes the best of them one by
one. Without the kernel these are a softmax, two launches of a top-k, a gather, a sum and three
pointwise operations in each layer, all of which take as long as a launch. Twin:
engine/kernels/expert_choice.py. Floor: `choice_floor`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.expert_choice import TINY, ChoiceRule
from engine.kernels.floor import Floor
from engine.kernels.gpu.overlapping import launch_dependents, pdl_options, wait_for_previous

LOGIT_BYTES, CHOICE_BYTES = 4, 4 + 8
LEAST = tl.constexpr(-3.0e38)  # of what is no number: above what is no expert


@triton.jit
def _choose(
    logits, correction, weights, chosen, experts, scale, tiny,
    TOP_K: tl.constexpr, SIGMOID: tl.constexpr, NORMALISED: tl.constexpr,
    EXPERTS: tl.constexpr, PICKS: tl.constexpr, OVERLAPPED: tl.constexpr = False,
):  # fmt: skip
    launch_dependents(OVERLAPPED)
    wait_for_previous(OVERLAPPED)
    token = tl.program_id(0).to(tl.int64)
    expert, pick = tl.arange(0, EXPERTS), tl.arange(0, PICKS)
    there = expert < experts
    x = tl.load(logits + token * experts + expert, mask=there, other=float("-inf"))
    wanted = x
    if SIGMOID:
        scores = tl.sigmoid(x)
    else:
        powers = tl.exp(x - tl.maximum(tl.max(tl.where(x == x, x, LEAST), 0), LEAST))
        scores = tl.div_rn(powers, tl.sum(powers, 0))
    if correction is not None:
        wanted = scores + tl.load(correction + expert, mask=there, other=0.0)
    wanted = tl.where(there, tl.where(wanted == wanted, wanted, LEAST), float("-inf"))
    ids, values = tl.zeros((PICKS,), tl.int32), tl.zeros((PICKS,), tl.float32)
    for place in range(TOP_K):
        best = tl.argmax(wanted, 0)
        score = tl.sum(tl.where(expert == best, scores, 0.0), 0)
        ids, values = tl.where(pick == place, best, ids), tl.where(pick == place, score, values)
        wanted = tl.where(expert == best, float("-inf"), wanted)
    if NORMALISED:
        values = tl.div_rn(values, tl.sum(values, 0) + tiny)
    at, inside = token * TOP_K + pick, pick < TOP_K
    tl.store(weights + at, values * scale, mask=inside)
    tl.store(chosen + at, ids.to(tl.int64), mask=inside)


def choose_experts(
    logits: Tensor, rule: ChoiceRule, correction: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """See its twin; `logits` float32. Of experts that tie, the first is chosen."""
    assert logits.dtype is torch.float32, "scores of half precision would tie"
    tokens, experts = logits.shape
    logits = logits.contiguous()
    weights = logits.new_empty(tokens, rule.top_k)
    chosen = torch.empty(tokens, rule.top_k, dtype=torch.int64, device=logits.device)
    if tokens:
        _choose[(tokens,)](
            logits, correction, weights, chosen, experts, rule.scale, TINY,
            TOP_K=rule.top_k, SIGMOID=rule.sigmoid, NORMALISED=rule.normalised,
            EXPERTS=triton.next_power_of_2(experts), PICKS=triton.next_power_of_2(rule.top_k),
            num_warps=1, **pdl_options(),
        )  # fmt: skip
    return weights, chosen


def choice_floor(tokens: int, experts: int, top_k: int) -> Floor:
    """A logit is read once; for each choice, a weight and an id are written.

    Each logit takes some 4 operations to become a score, and a comparison for each choice.
    """
    moved = tokens * (experts * LOGIT_BYTES + top_k * CHOICE_BYTES)
    return Floor(bytes=moved, operations=tokens * experts * (4 + top_k))
