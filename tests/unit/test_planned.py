"""Costs are learnt from what happens, and the cheapest plan is found with them."""

from random import Random

import msgspec
import pytest

from bench.routing.__main__ import cell
from bench.routing.simulation import Simulation
from bench.routing.traces import Chats
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import Request, RequestId, Sampling
from kv_transfer.blocks.mapping import map_blocks
from kv_transfer.layout import KvLayout
from proxy.routing.claims import PromptWork, WorkTiming
from proxy.routing.cost_based import bytes_to_move
from proxy.routing.costs import Costs, of_work
from proxy.routing.linear_fit import LinearFit


def line(x: tuple[float, float]) -> float:
    return 0.02 * x[0] + 0.03 * x[1]


def learned(fit: LinearFit, chance: Random, count: int, times: float = 1.0) -> LinearFit:
    for _ in range(count):
        x = 1.0, chance.choice([0.1, 0.5, 2.0, 8.0])
        fit.learn(x, times * line(x) * chance.gauss(1, 0.03))
    return fit


def test_a_line_is_found_from_far_off() -> None:
    fit = learned(LinearFit([0.001, 1.0], 16.0), Random(0), 60)
    assert fit.at((1.0, 4.0)) == pytest.approx(line((1.0, 4.0)), rel=0.1)


def test_one_far_off_hardly_moves_it() -> None:
    fit, x = learned(LinearFit([0.01, 0.01], 16.0), Random(0), 100), (1.0, 2.0)
    before = fit.at(x)
    fit.learn(x, 1000 * before)
    assert fit.at(x) == pytest.approx(before, rel=0.15)


def test_a_node_that_got_slower_is_noticed() -> None:
    chance = Random(0)
    fit = learned(LinearFit([0.01, 0.01], 16.0), chance, 100)
    learned(fit, chance, 80, times=3.0)
    assert fit.at((1.0, 2.0)) == pytest.approx(3 * line((1.0, 2.0)), rel=0.25)


@pytest.mark.parametrize("spread", [0.0, 0.02])
@pytest.mark.parametrize("count", [100, 20_000])
def test_so_is_one_that_did_nothing_but_alike_before(count: int, spread: float) -> None:
    """However long: what weights hide from such points is no reason to learn nothing more."""
    chance, fit = Random(0), LinearFit([0.01, 0.01, 0.01], 16.0)
    for at in range(count + 120):
        x = 1.0, chance.uniform(1 - spread, 1 + spread), chance.uniform(1 - spread, 1 + spread)
        fit.learn(x, (1.0 if at < count else 3.0) * chance.gauss(1, 0.03))
    assert fit.at((1.0, 1.0, 1.0)) == pytest.approx(3.0, rel=0.25)
    assert min(fit.weights) >= 0.0


def node(role: Role, name: str, start: str = "1") -> Node:
    return Node(Registration(role, f"{name}:80", "", name + start, "m", "f"), 0.0)


def test_who_was_not_met_is_like_the_others_and_a_restart_is_as_fast_as_before() -> None:
    costs, work = Costs(), PromptWork(1, 1000, 500_000)
    for _ in range(30):
        costs.learn_prompts(node(Role.PREFILL, "slow"), WorkTiming(work, 2.0))
    for name, start in (("slow", "2"), ("new", "1")):
        fit = costs.prompt(node(Role.PREFILL, name, start))
        assert fit.at(of_work(work)) == pytest.approx(2.0, rel=0.1)
    decode = costs.prompt(node(Role.DECODE, "d"))
    assert decode.at(of_work(work)) == pytest.approx(2.0, rel=0.1)


def test_answers_are_as_long_as_those_before_unless_they_are_told_to_be() -> None:
    costs = Costs()
    for _ in range(200):
        costs.learn_output(40)

    def come(**fields: int | bool) -> float:
        sampling = Sampling(**fields)  # type: ignore[arg-type]
        return costs.tokens_to_come(Request(RequestId("r"), (1,), sampling))

    assert come(max_tokens=1000) == pytest.approx(40, rel=0.05)
    assert come(max_tokens=10) == 10
    assert come(max_tokens=1000, ignore_eos=True) == 1000
    assert come(max_tokens=1000, min_tokens=500) == 500


@pytest.mark.parametrize("state", [0, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_as_much_kv_is_foretold_as_ranks_move(ranks: int, state: int) -> None:
    sizes = (4096 // ranks,) * ranks
    layout = KvLayout("float32", 16, 4, sizes, ranks, state_blocks=state)
    said = Registration(Role.DECODE, "d:80", "", kv_layout=msgspec.to_builtins(layout))
    moved = map_blocks(layout, layout).slot_bytes
    assert bytes_to_move(Node(said, 0.0), 2 * layout.block_size) == (2 + state) * moved


def test_estimates_come_true_once_something_was_learnt() -> None:
    run = Simulation("planned").run(Chats(chats=60).arrivals(1))
    assert run == Simulation("planned").run(Chats(chats=60).arrivals(1))
    off = sorted(one.first_s / one.foretold[0] for one in run[100:] if one.foretold)
    assert off[len(off) // 10] > 0.8
    assert off[9 * len(off) // 10] < 1.25


def test_prompts_are_found_again_and_first_tokens_come_sooner() -> None:
    arrivals, hits, late = Chats(chats=60).arrivals(1), dict[str, float](), dict[str, float]()
    for policy in ("round_robin", "prefix_aware", "planned"):
        run = Simulation(policy).run(arrivals)
        hits[policy] = sum(one.cached for one in run) / sum(one.tokens for one in run)
        late[policy] = sorted(one.first_s for one in run)[9 * len(run) // 10]
    for policy in ("prefix_aware", "planned"):
        assert hits[policy] > hits["round_robin"] + 0.1
        assert late[policy] < 0.7 * late["round_robin"]


@pytest.mark.parametrize(
    ("prompt", "answer", "load"), [(128, 2, 0.1), (1024, 16, 0.1), (4096, 128, 0.6)]
)
def test_auto_is_not_worse_than_the_better_of_both(
    prompt: int, answer: int, load: float
) -> None:
    means, _ = cell(prompt, answer, load, (1,))
    assert means["auto"] <= 1.02 * min(means["never"], means["always"])
