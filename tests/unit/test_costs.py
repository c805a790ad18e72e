"""Each node and each pair is known by its own times, and the others by what is usual."""

import pytest

from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import Request, RequestId, Sampling
from proxy.routing.claims import PromptWork, WorkTiming
from proxy.routing.costs import MOST_NODES, Costs, of_batch, of_work

TIMES = 30
FAST, SLOW, NEW = "fast", "slow", "new"
WORK, BATCH, BYTES = PromptWork(1, 1000, 500_000), (4, 4000.0), 10**9


def node(name: str, role: Role = Role.DECODE) -> Node:
    return Node(Registration(role, f"{name}:80", "", name, "m", "f"), 0.0)


def in_order(fast: float, new: float, slow: float) -> bool:
    assert fast == pytest.approx(0.1, rel=0.3)
    assert slow == pytest.approx(1.0, rel=0.3)
    return fast < new < slow


def taught() -> Costs:
    """With a fast and a slow node of each role, asked in turn."""
    costs = Costs()
    for _ in range(TIMES):
        for name, seconds in ((FAST, 0.1), (SLOW, 1.0)):
            costs.learn_prompts(node(name), WorkTiming(WORK, seconds))
            costs.learn_step(node(name), *BATCH, seconds)
            costs.learn_transfer(node("p", Role.PREFILL), node(name), BYTES, seconds)
    return costs


def test_prompts_steps_and_transfers() -> None:
    costs, names, source = taught(), (FAST, NEW, SLOW), node("p", Role.PREFILL)
    assert in_order(*(costs.prompt(node(name)).at(of_work(WORK)) for name in names))
    assert in_order(*(costs.step(node(name)).at(of_batch(*BATCH)) for name in names))
    assert in_order(*(costs.link_s(source, node(name), BYTES) for name in names))


def test_a_transfer_is_a_pairs_alone() -> None:
    costs = taught()
    usual = costs.link_s(node("q", Role.PREFILL), node(NEW), BYTES)
    assert costs.link_s(node("q", Role.PREFILL), node(FAST), BYTES) == usual
    assert costs.link_s(node("p", Role.PREFILL), node(FAST), BYTES) < usual


def test_the_first_nodes_are_forgotten_when_there_are_too_many() -> None:
    costs = taught()
    for number in range(MOST_NODES):
        costs.learn_step(node(str(number)), *BATCH, 0.5)
    forgotten = costs.step(node(FAST)).at(of_batch(*BATCH))
    assert forgotten == costs.step(node(NEW)).at(of_batch(*BATCH))
    assert forgotten != costs.step(node("0")).at(of_batch(*BATCH))


def test_what_was_generated_before_is_not_to_come() -> None:
    def come(generated: int, **fields: int | bool) -> float:
        sampling = Sampling(**fields)  # type: ignore[arg-type]
        asked = Request(RequestId("r"), (1,), sampling, generated=(1,) * generated)
        return Costs(mean_output=40.0).tokens_to_come(asked)

    assert come(30, max_tokens=50) == 20
    assert come(30, max_tokens=1000, min_tokens=100) == 70
    assert come(30, max_tokens=50, ignore_eos=True) == 20
