"""The experts of a token, and their weights, are those of plain torch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.kernels.expert_choice import ChoiceRule, choose_experts_twin
from engine.kernels.gpu.expert_choice import choice_floor, choose_experts
from tests.kernels.ahead import compiled

REAL = pytest.mark.gpu
SIZES = [
    *((1, 1, 1), (3, 4, 2), (5, 60, 4), (2, 128, 8), (7, 130, 22)),
    *(pytest.param(tokens, 128, 8, marks=REAL) for tokens in (1, 64, 8192)),
    pytest.param(64, 512, 10, marks=REAL),
]
RULES = {
    "softmax": ChoiceRule(1),
    "softmax that adds up": ChoiceRule(1, normalised=True),
    "sigmoid": ChoiceRule(1, sigmoid=True, scale=2.5),
    "sigmoid that adds up": ChoiceRule(1, sigmoid=True, normalised=True, scale=0.5),
}


def exactly(logits: Tensor, rule: ChoiceRule, correction: Tensor | None) -> Tensor:
    """[tokens, experts] float64 on the CPU: each expert's weight, zero if not chosen."""
    wide = None if correction is None else correction.double()
    weights, chosen = choose_experts_twin(logits.double(), rule, wide)
    return by_expert(weights, chosen, logits.shape[1])


def by_expert(weights: Tensor, chosen: Tensor, experts: int) -> Tensor:
    rows = torch.zeros(len(chosen), experts, dtype=torch.float64, device=chosen.device)
    return rows.scatter_(1, chosen, weights.double())


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("tokens", "experts", "top_k"), SIZES)
def test_it_is_that_of_float64(
    tokens: int, experts: int, top_k: int, rule: str, corrected: bool, device: torch.device
) -> None:
    asked = replace(RULES[rule], top_k=top_k)
    logits = 3 * torch.randn(tokens, experts, device=device)
    correction = torch.randn(experts, device=device) if corrected else None
    weights, chosen = choose_experts(logits, asked, correction)
    assert weights.shape == chosen.shape == (tokens, top_k)
    assert (weights.dtype, chosen.dtype) == (torch.float32, torch.int64)
    right = exactly(logits, asked, correction)
    torch.testing.assert_close(by_expert(weights, chosen, experts), right, rtol=1e-5, atol=1e-7)
    assert torch.equal(chosen, choose_experts_twin(logits, asked, correction)[1])


def test_of_experts_that_tie_the_first_are_chosen(device: torch.device) -> None:
    weights, chosen = choose_experts(torch.zeros(2, 5, device=device), ChoiceRule(3))
    assert chosen.tolist() == [[0, 1, 2]] * 2
    assert weights.tolist() == [[pytest.approx(0.2)] * 3] * 2


@pytest.mark.parametrize("sigmoid", [False, True])
def test_no_number_is_no_expert_that_does_not_exist(
    sigmoid: bool, device: torch.device
) -> None:
    """An id beyond the weights would read whatever lies there."""
    logits = torch.full((1, 5), torch.nan, device=device)
    weights, chosen = choose_experts(logits, ChoiceRule(4, sigmoid))
    assert sorted(chosen[0].tolist()) == [0, 1, 2, 3]
    assert weights.isnan().all()
    logits[0, :] = -torch.inf
    logits[0, 3] = 1.0
    weights, chosen = choose_experts(logits, ChoiceRule(2, sigmoid, normalised=True))
    assert chosen[0].tolist() == [3, 0]
    assert weights[0].tolist() == [1.0, 0.0]


def test_without_tokens_nothing_is_launched(device: torch.device) -> None:
    weights, chosen = choose_experts(torch.empty(0, 8, device=device), ChoiceRule(2))
    assert weights.shape == chosen.shape == (0, 2)


def test_half_precision_is_refused(device: torch.device) -> None:
    with pytest.raises(AssertionError, match="would tie"):
        choose_experts(torch.zeros(1, 4, dtype=torch.bfloat16, device=device), ChoiceRule(1))


def test_it_compiles_for_hopper_and_spills_nothing() -> None:
    calls = [
        f"choose_experts(torch.ones(3, {experts}), ChoiceRule({top_k}, {sigmoid}, True))"
        for experts, top_k, sigmoid in ((128, 8, False), (512, 10, True))
    ]
    found = compiled("engine.kernels.gpu.expert_choice", *calls)
    assert sorted(found) == ["_choose"]
    assert found["_choose"]["spilled"] == 0


def test_the_floor_is_one_look_at_the_logits() -> None:
    assert choice_floor(64, 128, 8).bytes == 64 * (128 * 4 + 8 * 12)
