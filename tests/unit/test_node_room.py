"""No node is given more than its limit while another one has room for it."""

from collections.abc import Sequence
from random import Random

import pytest
from msgspec import structs

from api.generator import TokenEvent
from discovery.node import Node
from discovery.registration import Role
from discovery.registry import Registry
from engine.request import Request, RequestId, Sampling
from proxy.admission.limits import LoadLimit, NodeLimit
from proxy.admission.pools import NodeCounts
from proxy.config import Policy
from proxy.errors import NodeFailed
from proxy.health.breaker import BreakerState
from proxy.health.health import Health
from proxy.routing.building import build_planner
from proxy.routing.capacity import NodeCapacity
from proxy.routing.in_flight import PlanInFlight
from proxy.routing.plan import RoutingQuery
from proxy.routing.planner import Planner
from tests.unit.test_siblings import nodes

SEATS = NodeLimit("auto")
NODES_SEATS = NodeCapacity(SEATS)
POLICIES = ["planned", "prefix_aware", "least_loaded", "session", "round_robin", "random"]
DECODES = nodes(Role.DECODE, 3)
PREFILLS = nodes(Role.PREFILL, 3)


def ask(number: int, length: int = 10) -> RoutingQuery:
    """All of one session, and all alike: what policies would send to one node."""
    sampling = Sampling(max_tokens=10)
    request = Request(RequestId(f"r{number}"), (1,) * length, sampling, session="one")
    return RoutingQuery.of(request, now=0.0)


def go(planner: Planner, one: RoutingQuery, prefills: Sequence[Node] = ()) -> PlanInFlight:
    return planner.start(planner.plan(one, DECODES, lambda _: prefills), one).claim()


def prompts(planner: Planner) -> list[int]:
    """How many are at each prefill node."""
    return [planner.state.claims.at(one).requests for one in PREFILLS]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_has_its_limit_before_any_has_more(policy: Policy) -> None:
    planner = build_planner(
        policy, policy, "never", Random(0), NodeCapacity(NodeLimit(requests=2))
    )
    flights = [go(planner, ask(number)) for number in range(6)]
    taken = [planner.state.claims.at(one).requests for one in DECODES]
    assert taken == [2, 2, 2]
    freed = flights[3].plan.decode
    flights[3].release(1.0)
    assert go(planner, ask(6)).plan.decode is freed


def seated(*seats: int | None) -> list[Node]:
    plain = nodes(Role.DECODE, len(seats))
    return [
        Node(structs.replace(one.registration, max_num_seqs=count), 0.0)
        for one, count in zip(plain, seats, strict=True)
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_has_what_it_has_seats_for(policy: Policy) -> None:
    planner = build_planner(policy, policy, "never", Random(0), NodeCapacity(SEATS))
    decodes = seated(1, 2, 3)
    for number in range(6):
        planner.start(planner.plan(ask(number), decodes, lambda _: ()), ask(number)).claim()
    assert [planner.state.claims.at(one).requests for one in decodes] == [1, 2, 3]


def test_who_names_no_seats_has_room() -> None:
    planner = build_planner("least_loaded", "least_loaded", "never", Random(0), NODES_SEATS)
    decodes = seated(1, None)
    for number in range(6):
        planner.start(planner.plan(ask(number), decodes, lambda _: ()), ask(number)).claim()
    assert [planner.state.claims.at(one).requests for one in decodes] == [1, 5]


@pytest.mark.parametrize(
    ("seats", "workers", "expected"),
    [((2, 5), 1, 7), ((2, 5), 4, 3), ((2, None), 1, None), ((), 1, None)],
)
def test_the_gate_counts_the_seats_of_all(
    seats: tuple[int | None, ...], workers: int, expected: int | None
) -> None:
    registry = Registry()
    for one in (*seated(*seats), *nodes(Role.PREFILL, 3)):
        registry.apply(one.registration, now=0.0)
    capacity = NodeCapacity(SEATS, workers=workers)
    proven = Health(registry).proven
    counted = capacity.count(registry, proven, 0.0, None)
    assert counted == (len(seats), 3, expected)
    unasked = NodeCapacity(NodeLimit(3)).count(registry, proven, 0.0, None)
    assert unasked == (len(seats), 3, None)


def test_the_gate_counts_no_node_that_gets_no_work() -> None:
    """Or the others would be given what it has room for, beyond their limits."""
    registry = Registry()
    for one in seated(2, 5):
        registry.apply(one.registration, now=0.0)
    health = Health(registry)
    small, large = (one.node_id for one in registry.all())

    def counted(at: float) -> NodeCounts:
        return NODES_SEATS.count(registry, health.proven, at, None)

    health.record_failure(NodeFailed(large, "nobody is there"), begun=1.0, now=1.0)
    assert counted(1.0) == (1, 0, 2)
    registry.apply(seated(2, 5)[1].registration, now=3.0)
    assert health.state(registry.all()[1], now=3.0) is BreakerState.HALF_OPEN
    assert counted(3.0) == (1, 0, 2), "it takes one call at a time"
    health.record_failure(NodeFailed(small, "nobody is there"), begun=1.0, now=1.0)
    assert counted(1.0) == (2, 0, 7), "no node at all would be no limit at all"


def test_tokens_count_as_well_and_one_that_is_larger_goes_alone() -> None:
    planner = build_planner(
        "planned", "planned", "never", Random(0), NodeCapacity(NodeLimit(tokens=50))
    )
    large = go(planner, ask(0, length=500)).plan.decode
    others = [go(planner, ask(number, length=25)).plan.decode for number in (1, 2)]
    assert len({large, *others}) == 3


def test_where_nobody_has_room_whoever_lost_its_node_goes_on_all_the_same() -> None:
    planner = build_planner(
        "planned", "planned", "never", Random(0), NodeCapacity(NodeLimit(requests=1))
    )
    for number in range(3):
        go(planner, ask(number))
    assert go(planner, ask(3)).plan.decode in DECODES
    assert planner.choose(DECODES, ask(4), DECODES[0]) in DECODES


@pytest.mark.parametrize("policy", POLICIES)
def test_prefill_nodes_have_a_limit_of_their_own(policy: Policy) -> None:
    planner = build_planner(
        policy, policy, "never", Random(0), NodeCapacity(prefill=LoadLimit(requests=2))
    )
    flights = [go(planner, ask(number), PREFILLS) for number in range(6)]
    assert prompts(planner) == [2, 2, 2]
    freed = flights[3].plan.prefill
    assert freed is not None
    flights[3].record_event(freed, TokenEvent((1,)), 1.0)
    assert go(planner, ask(6), PREFILLS).plan.prefill is freed
    assert go(planner, ask(7), PREFILLS).plan.prefill in PREFILLS, "it has lost its node"


@pytest.mark.parametrize("policy", POLICIES)
def test_prompts_that_are_pooled_go_where_there_is_room_for_them(policy: Policy) -> None:
    planner = build_planner(
        policy, policy, "never", Random(0), NodeCapacity(prefill=LoadLimit(tokens=15))
    )
    for number in range(3):
        one = ask(number)
        planner.pool(planner.choose(PREFILLS, one, None), [one.num_tokens], one.now)
    assert prompts(planner) == [1, 1, 1]


@pytest.mark.parametrize("policy", POLICIES)
def test_where_decode_nodes_may_run_prompts_they_run_what_has_no_room(policy: Policy) -> None:
    planner = build_planner(
        policy, policy, "auto", Random(0), NodeCapacity(prefill=LoadLimit(requests=1))
    )
    plans = [go(planner, ask(number), PREFILLS).plan for number in range(6)]
    assert max(prompts(planner)) == 1
    assert sum(one.prefill is None for one in plans) >= 3


def test_choices_of_one_request_go_to_one_prefill_node_even_if_it_is_full() -> None:
    planner = build_planner(
        "planned", "planned", "never", Random(0), NodeCapacity(prefill=LoadLimit(1))
    )
    for number in range(3):
        sampling = Sampling(seed=1, sample_index=number)
        choice = Request(RequestId(f"r-{number}"), (1,) * 100, sampling)
        go(planner, RoutingQuery.of(choice, now=0.0), PREFILLS)
    assert sorted(prompts(planner)) == [0, 0, 3]
