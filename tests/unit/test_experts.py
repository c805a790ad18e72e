"""Experts chosen and computed all at once are those chosen and computed one by one."""

import math
from dataclasses import replace
from functools import partial

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.checkpoints.linear import PlainLinear
from engine.checkpoints.storage import stack_linears
from engine.kernels.products import TorchProducts
from engine.kernels.rows import Rows
from engine.models.experts import (
    Expert,
    LoopedExperts,
    Router,
    SharedExpert,
    SparseMlp,
    StackedExperts,
    clamped_swiglu,
    gated,
)
from engine.models.mlp import Activation, GatedMlp
from engine.models.routing import ExpertGroups, Routing

HIDDEN, WIDTH, EXPERTS = 6, 5, 8
PRODUCTS = ("gate_up", "down")
ROUTINGS = {
    "all in one softmax": Routing(num_experts=EXPERTS, top_k=2),
    "normalised": Routing(num_experts=EXPERTS, top_k=3, normalised=True),
    "best of groups": Routing(
        num_experts=EXPERTS, top_k=3, scale=16.0, groups=ExpertGroups(count=4, chosen=2)
    ),
    "sigmoid": Routing(num_experts=EXPERTS, top_k=2, scoring="sigmoid", scale=2.5),
    "sigmoid in groups": Routing(
        num_experts=EXPERTS,
        top_k=4,
        scoring="sigmoid",
        normalised=True,
        scale=2.5,
        groups=ExpertGroups(count=2, chosen=1, judged_by=2),
    ),
    "everybody": Routing(num_experts=EXPERTS, top_k=EXPERTS, normalised=True),
}


class Counted(PlainLinear):
    """Says how often it was used, and on how many rows."""

    def __call__(self, inputs: Rows) -> Tensor:
        calls.append((id(self), len(inputs)))
        return super().__call__(inputs)


calls = list[tuple[int, int]]()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def layer(routing: Routing, *, seed: int = 0, shared: bool = False) -> SparseMlp:
    """Biases and a correction everywhere, so that none of them can be forgotten."""
    router = Router(
        routing,
        numbers(EXPERTS, HIDDEN, seed=seed),
        numbers(EXPERTS, seed=seed + 1),
        numbers(EXPERTS, seed=seed + 2),
    )
    experts = [expert(seed + 10 * index) for index in range(EXPERTS)]
    gate = PlainLinear(numbers(1, HIDDEN, seed=seed + 5))
    one = expert(seed + 7)
    always = SharedExpert(GatedMlp(one.gate_up, one.down), gate) if shared else None
    gating = partial(clamped_swiglu, limit=0.7) if shared else gated
    return SparseMlp(router, LoopedExperts(experts, gating), always)


def at_once(mlp: SparseMlp, part: range = range(EXPERTS)) -> SparseMlp:
    """The same experts in one piece, or some of them."""
    assert isinstance(mlp.experts, LoopedExperts)
    each = [mlp.experts.each[place] for place in part]
    inward, outward = (stack_linears([getattr(one, name) for one in each]) for name in PRODUCTS)
    gating, products = mlp.experts.gating, TorchProducts()
    stack = StackedExperts(inward, outward, gating, products, EXPERTS, part.start)
    return replace(mlp, experts=stack)


def expert(seed: int) -> Expert:
    return Expert(
        Counted(numbers(2 * WIDTH, HIDDEN, seed=seed), numbers(2 * WIDTH, seed=seed + 1)),
        Counted(numbers(HIDDEN, WIDTH, seed=seed + 2), numbers(HIDDEN, seed=seed + 3)),
    )


def one_by_one(mlp: SparseMlp, hidden: Tensor) -> Tensor:
    """Every token alone through every expert it chose, in Python."""
    rows, experts = list[Tensor](), mlp.experts
    assert isinstance(experts, LoopedExperts)
    for token in hidden:
        total = torch.zeros_like(token)
        for index, weight in choices(mlp.router, token).items():
            total = total + weight * through(experts.each[index], token, experts.gating)
        if mlp.shared is not None:
            assert mlp.shared.gate is not None
            share = 1 / (1 + torch.exp(-mlp.shared.gate(token[None])[0]))
            total = total + share * mlp.shared.mlp(token[None])[0]
        rows.append(total)
    return torch.stack(rows)


def through(one: Expert, token: Tensor, gating: Activation) -> Tensor:
    gates_and_ups = one.gate_up(token[None])
    return one.down(gating(gates_and_ups))[0]


def choices(router: Router, token: Tensor) -> dict[int, float]:
    routing, wanted = router.routing, dict[int, float]()
    assert router.bias is not None
    logits = router.weight @ token + router.bias
    if routing.scoring == "softmax":
        scores = (logits.exp() / logits.exp().sum()).tolist()
    else:
        scores = (1 / (1 + torch.exp(-logits))).tolist()
    assert router.correction is not None
    wanted = {i: scores[i] + float(router.correction[i]) for i in range(EXPERTS)}
    if routing.groups is not None:
        allowed = within_groups(wanted, routing.groups)
        wanted = {i: score for i, score in wanted.items() if i in allowed}
    best = sorted(wanted, key=lambda i: wanted[i], reverse=True)[: routing.top_k]
    total = sum(scores[i] for i in best) if routing.normalised else 1.0
    return {i: scores[i] / total * routing.scale for i in best}


def within_groups(wanted: dict[int, float], groups: ExpertGroups) -> set[int]:
    size = EXPERTS // groups.count

    def quality(first: int) -> float:
        ours = sorted((wanted[i] for i in range(first, first + size)), reverse=True)
        return sum(ours[: groups.judged_by])

    best = sorted(range(0, EXPERTS, size), key=quality, reverse=True)[: groups.chosen]
    return {i for first in best for i in range(first, first + size)}


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
@pytest.mark.parametrize("shared", [False, True])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(tokens=st.integers(1, 40), seed=st.integers(0, 99))
def test_all_at_once_is_one_by_one(
    routing: Routing, shared: bool, tokens: int, seed: int
) -> None:
    mlp, hidden = layer(routing, seed=seed, shared=shared), numbers(tokens, HIDDEN, seed=seed)
    expected = one_by_one(mlp, hidden)
    for ours in (mlp, at_once(mlp)):
        torch.testing.assert_close(ours(hidden), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_ranks_with_some_experts_each_add_up_to_all(routing: Routing) -> None:
    mlp, hidden = layer(routing), numbers(23, HIDDEN)
    parts = [at_once(mlp, part)(hidden) for part in (range(3), range(3, 4), range(4, EXPERTS))]
    torch.testing.assert_close(sum(parts), mlp(hidden), rtol=1e-12, atol=1e-12)


def test_in_one_piece_nobody_in_the_batch_changes_an_answer() -> None:
    mlp, hidden = at_once(layer(ROUTINGS["normalised"])), numbers(23, HIDDEN)
    alone = torch.cat([mlp(token[None]) for token in hidden])
    torch.testing.assert_close(mlp(hidden), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("routing", ROUTINGS.values(), ids=ROUTINGS.keys())
def test_nobody_in_the_batch_changes_an_answer(routing: Routing) -> None:
    mlp, hidden = layer(routing, shared=True), numbers(23, HIDDEN)
    alone = torch.cat([mlp(token[None]) for token in hidden])
    torch.testing.assert_close(mlp(hidden), alone, rtol=1e-12, atol=1e-12)


def test_experts_that_nobody_chose_are_not_touched() -> None:
    mlp, hidden = layer(ROUTINGS["normalised"]), numbers(2, HIDDEN)
    chosen, experts = mlp.router(hidden)[1].flatten().tolist(), mlp.experts
    assert isinstance(experts, LoopedExperts)
    calls.clear()
    mlp(hidden)
    expected = {
        (id(product), chosen.count(index))
        for index in set(chosen)
        for product in (experts.each[index].gate_up, experts.each[index].down)
    }
    assert set(calls) == expected
    assert len(calls) == len(expected) < 2 * EXPERTS


@given(gate=st.floats(-20, 20), up=st.floats(-20, 20))
def test_clamped_swiglu_is_what_it_says(gate: float, up: float) -> None:
    low, kept = min(gate, 7.0), max(-7.0, min(up, 7.0))
    expected = (kept + 1) * low / (1 + math.exp(-1.702 * low))
    answer = clamped_swiglu(torch.tensor([[gate, up]], dtype=torch.float64))
    assert float(answer) == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_half_precision_routes_as_float32_does() -> None:
    """Two experts that bfloat16 cannot tell apart: the better one is chosen all the same."""
    weight = torch.tensor([[1.0, 0.0], [1.0, 1e-3]])
    hidden = torch.tensor([[4.0, 1.0], [4.0, -1.0]], dtype=torch.bfloat16)
    _, chosen = Router(Routing(num_experts=2, top_k=1), weight)(hidden)
    assert chosen.tolist() == [[1], [0]]
    rough = Router(Routing(num_experts=2, top_k=1), weight.bfloat16())(hidden)[1]
    assert rough.tolist() != chosen.tolist()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"num_experts": 2, "top_k": 3}, "3 experts per token"),
        ({"num_experts": 7, "top_k": 1, "groups": {"count": 2, "chosen": 1}}, "2 groups"),
        (
            {
                "num_experts": 4,
                "top_k": 1,
                "groups": {"count": 4, "chosen": 1, "judged_by": 2},
            },
            "4 groups",
        ),
        ({"num_experts": 8, "top_k": 3, "groups": {"count": 4, "chosen": 1}}, "no choice"),
        ({"num_experts": 8, "top_k": 3, "groups": {"count": 4, "chosen": 5}}, "no choice"),
    ],
)
def test_impossible_choices_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        msgspec.convert(settings, Routing)
