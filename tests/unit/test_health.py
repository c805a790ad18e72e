"""What calls show of nodes and of pairs, and what they do not."""

import gc
import time

import msgspec
import pytest

from api.generator import StageEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from proxy.errors import Cause, NodeFailed
from proxy.health.breaker import BreakerState
from proxy.health.health import MOST_KNOWN, Health
from proxy.routing.plan import Plan

TOKEN = TokenEvent((1,))
NOBODYS_FAULT = (Cause.REFUSED, Cause.NO_ROOM, Cause.LEAVING, Cause.DIVERGED)


def cluster(x: int = 2, y: int = 2) -> Health:
    registry = Registry(ttl_s=60)
    for role, count in ((Role.PREFILL, x), (Role.DECODE, y)):
        for i in range(count):
            beat(registry, f"{role.value.lower()}{i}", 0)
    return Health(registry)


def beat(registry: Registry, name: str, now: float, node_id: str | None = None) -> None:
    role = Role(name[0].upper())
    one = Registration(role, f"{name}:80", f"{name}:21", node_id or name, "m", "f")
    registry.apply(one, now=now)


def node(health: Health, name: str) -> Node:
    found = health.registry.find(name)
    assert found
    return found


def well(health: Health, role: Role, now: float) -> list[str]:
    nodes = health.healthy(health.registry.nodes(role, now=now), now=now)
    return [one.node_id for one in nodes]


def breaks(health: Health, name: str, now: float, cause: Cause = Cause.BROKEN) -> None:
    health.record_failure(NodeFailed(name, "it broke", cause), begun=now, now=now)


def test_a_node_that_broke_off_is_left_alone_and_the_others_are_not() -> None:
    health = cluster()
    breaks(health, "d0", 1)
    assert well(health, Role.DECODE, 1.5) == ["d1"]
    assert well(health, Role.PREFILL, 1.5) == ["p0", "p1"]
    assert health.failures == {"d0:80": 1}
    assert health.opened["node"] == 1


@pytest.mark.parametrize("cause", NOBODYS_FAULT)
def test_a_client_s_4xx_or_a_full_node_feeds_no_breaker(cause: Cause) -> None:
    health = cluster()
    for _ in range(100):
        breaks(health, "d0", 1, cause)
    assert well(health, Role.DECODE, 1) == ["d0", "d1"]
    assert not health.failures


def test_who_said_that_it_stops_and_is_gone_then_has_done_nothing_wrong() -> None:
    health = cluster()
    leaving = msgspec.structs.replace(node(health, "d0").registration, state=State.DRAINING)
    health.registry.apply(leaving, now=1)
    breaks(health, "d0", 2, Cause.UNREACHABLE)
    assert not health.failures
    breaks(health, "d0", 2, Cause.BROKEN)  # it was to end what it had begun
    breaks(health, "d1", 2, Cause.UNREACHABLE)
    assert health.failures == {"d0:80": 1, "d1:80": 1}


def test_a_node_that_flaps_is_not_back_with_its_heartbeats() -> None:
    """Its heart beats each second, and every call to it breaks."""
    health, asked = cluster(0, 1), 0
    for second in range(1, 61):
        beat(health.registry, "d0", second)
        if well(health, Role.DECODE, second + 0.1):
            asked += 1
            begun = second + 0.1
            health.begin_attempt(Plan(None, node(health, "d0")), now=begun)
            health.record_failure(NodeFailed("d0", "it broke"), begun=begun, now=begun)
    assert asked <= 7  # at 1, 2, 4, 8, 16, 30 and 60 s, or so


def test_a_node_is_tried_again_once_it_was_heard_of_and_a_token_closes_its_breaker() -> None:
    health = cluster(1, 1)
    breaks(health, "d0", 1)
    assert well(health, Role.DECODE, 10) == []
    beat(health.registry, "d0", 10)
    assert well(health, Role.DECODE, 10) == ["d0"]
    plan = Plan(node(health, "p0"), node(health, "d0"))
    health.begin_attempt(plan, now=10)
    assert well(health, Role.DECODE, 10.1) == []
    health.record_event(plan.decode, TOKEN, plan, begun=10, now=10.2)
    assert health.state(plan.decode, now=10.2) is BreakerState.CLOSED


def test_a_client_that_leaves_before_the_first_token_shows_nothing() -> None:
    health = cluster(1, 1)
    breaks(health, "d0", 1)
    beat(health.registry, "d0", 10)
    plan = Plan(node(health, "p0"), node(health, "d0"))
    health.begin_attempt(plan, now=10)
    health.end_attempt(plan, begun=10)
    assert health.state(plan.decode, now=10) is BreakerState.HALF_OPEN
    assert well(health, Role.DECODE, 10) == ["d0"]


def test_a_process_that_was_started_anew_is_tried_at_once() -> None:
    health = cluster(0, 1)
    for now in range(5):
        breaks(health, "d0", now * 100)
    beat(health.registry, "d0", 500, node_id="d0 again")
    assert well(health, Role.DECODE, 500) == ["d0 again"]
    breaks(health, "d0", 500)  # a late word of the one before it
    assert well(health, Role.DECODE, 500) == ["d0 again"]


LOST, MOVED = StageEvent("lost", 1.2), StageEvent("transfer", 0.1)


def test_a_pair_whose_link_is_cut_is_avoided_and_both_go_on_with_others() -> None:
    health = cluster()
    p0, p1, d0, d1 = (node(health, name) for name in ("p0", "p1", "d0", "d1"))
    health.record_event(d0, LOST, Plan(p0, d0), begun=1, now=2)
    joined = [(p, d) for p in (p0, p1) for d in (d0, d1) if health.pair_usable(p, d, now=2)]
    assert joined == [(p0, d1), (p1, d0), (p1, d1)]
    assert well(health, Role.DECODE, 2) == ["d0", "d1"]
    assert list(health.unhealthy_pairs(now=2)) == [(("p0", "d0"), BreakerState.OPEN)]
    assert health.opened["pair"] == 1


def test_a_pair_is_well_again_when_kv_has_come_through() -> None:
    health = cluster(1, 1)
    plan = Plan(node(health, "p0"), node(health, "d0"))
    health.record_event(plan.decode, LOST, plan, begun=1, now=1)
    assert health.pair_usable(*reversed([plan.decode, node(health, "p0")]), now=3)
    health.begin_attempt(plan, now=3)
    assert not health.pair_usable(node(health, "p0"), plan.decode, now=3)
    health.record_event(plan.decode, MOVED, plan, begun=3, now=4)
    assert list(health.unhealthy_pairs(now=4)) == []


def test_a_failure_blamed_on_the_pair_is_no_node_s() -> None:
    health = cluster()
    failure = NodeFailed("p0", "corrupt", Cause.KV_TRANSFER, pair=("p0", "d0"))
    health.record_failure(failure, begun=1, now=1)
    assert [pair for pair, _ in health.unhealthy_pairs(now=1)] == [("p0", "d0")]
    assert well(health, Role.PREFILL, 1) == ["p0", "p1"]
    assert not health.failures


def test_what_is_long_over_is_forgotten() -> None:
    health = cluster()
    plan = Plan(node(health, "p0"), node(health, "d0"))
    breaks(health, "d0", 1)
    health.record_event(plan.decode, LOST, plan, begun=1, now=1)
    health.forget(now=1000)
    assert len(list(health.unhealthy_pairs(now=1000))) == 1
    health.registry.remove("p0:80")
    health.record_success(plan.decode, begun=2, now=2)
    health.forget(now=1000)
    assert not list(health.unhealthy_pairs(now=1000))
    assert not health.has_failures


def test_plans_see_to_it_that_it_is_forgotten() -> None:
    health = cluster()
    breaks(health, "d0", 1)
    plan = Plan(node(health, "p0"), node(health, "d0"))
    health.record_success(plan.decode, begun=2, now=2)
    health.begin_attempt(plan, now=50)
    assert health.has_failures
    health.begin_attempt(plan, now=70)
    assert not health.has_failures


def test_no_more_is_known_than_there_may_be() -> None:
    health = cluster(0, 0)
    for i in range(MOST_KNOWN + 2):
        for name in ("d1", f"d{i + 2}"):
            beat(health.registry, name, 0)
            breaks(health, name, 0)
            health.registry.remove(f"{name}:80")
    assert len(health.failures) == MOST_KNOWN
    assert health.failures["d1:80"] == MOST_KNOWN + 2


def test_with_a_thousand_nodes_and_one_in_trouble_it_is_asked_in_no_time() -> None:
    """A bound that only a scan of pairs would break, on any machine."""
    health = cluster(0, 1000)
    breaks(health, "d7", 0)
    nodes = health.registry.nodes(Role.DECODE, now=0)
    gc.collect()
    gc.disable()  # of whatever ran here before: it takes half a second
    try:
        begun = time.process_time()
        for _ in range(10):
            assert len(health.healthy(nodes, now=0.5)) == 999
        assert time.process_time() - begun < 0.1
    finally:
        gc.enable()


def test_what_is_gone_for_long_costs_no_plan_anything() -> None:
    """Nodes that crash and come back elsewhere leave their addresses behind."""
    health = cluster(1, 2)
    breaks(health, "d0", 1)
    health.registry.remove("d0:80")
    health.forget(now=2)
    assert health.has_failures  # it may come back, and is tried carefully then
    health.forget(now=62)
    assert not health.has_failures


def test_two_nodes_that_have_changed_their_roles_are_no_pair_any_more() -> None:
    health = cluster(1, 1)
    plan = Plan(node(health, "p0"), node(health, "d0"))
    health.record_event(plan.decode, LOST, plan, begun=1, now=1)
    said = node(health, "p0").registration
    health.registry.apply(msgspec.structs.replace(said, type=Role.DECODE, turn=1), now=2)
    health.forget(now=2)
    assert not list(health.unhealthy_pairs(now=2))
    assert not health.has_failures


def test_a_call_of_an_attempt_that_began_before_is_no_probe() -> None:
    health = cluster(1, 1)
    breaks(health, "d0", 5)
    beat(health.registry, "d0", 10)
    health.begin_attempt(Plan(None, node(health, "d0")), now=4)
    assert well(health, Role.DECODE, 10) == ["d0"]


def test_who_is_left_without_those_in_trouble_is_made_once() -> None:
    health = cluster(0, 1000)
    nodes = health.registry.nodes(Role.DECODE, now=0)
    assert health.healthy(nodes, now=0.5) is nodes
    breaks(health, "d7", 0)
    left = health.healthy(nodes, now=0.5)
    assert [one.node_id for one in nodes if one not in left] == ["d7"]
    beat(health.registry, "d3", 0.5)
    assert health.healthy(health.registry.nodes(Role.DECODE, now=0.5), now=0.5) is left
    breaks(health, "d8", 0.5)
    assert len(health.healthy(nodes, now=0.6)) == 998
    health.registry.remove("d9:80")
    assert len(health.healthy(health.registry.nodes(Role.DECODE, now=0.6), now=0.6)) == 997


def test_operators_are_told_of_a_key_each_time_that_it_keeps_a_node_from_work() -> None:
    """Of what may be over by itself they are not."""
    health = cluster()
    refused = NodeFailed("d0", "another key", Cause.SIGNATURE)
    told = "the node at d0:80 gets no work for now: another key"
    assert health.record_failure(refused, begun=1, now=2) == told
    assert (
        health.record_failure(refused, begun=1, now=3) is None
    )  # it began before that was known
    assert health.record_failure(refused, begun=9, now=9) == told
    assert health.record_failure(NodeFailed("d1", "it broke"), begun=1, now=2) is None


def test_a_cut_link_is_nothing_to_an_attempt_of_one_node() -> None:
    health = cluster()
    lost = NodeFailed("p0", "corrupt", Cause.KV_TRANSFER, pair=("p0", "d0"))
    health.record_failure(lost, begun=1, now=1)
    alone = Plan(None, node(health, "d0"))
    health.begin_attempt(alone, now=2)
    health.end_attempt(alone, begun=2)
    assert list(health.unhealthy_pairs(now=1)) == [(("p0", "d0"), BreakerState.OPEN)]


def test_a_node_that_is_forgotten_meanwhile_has_its_failure_counted() -> None:
    health = cluster()
    nodes = node(health, "d1"), node(health, "d0")
    beat(health.registry, "d0", 1, node_id="started anew")
    failure = NodeFailed("d0", "silent", Cause.BROKEN)
    health.record_failure(failure, nodes, begun=0, now=2)
    assert health.failures == {"d0:80": 1}
    assert well(health, Role.DECODE, 2) == ["d1", "started anew"]
