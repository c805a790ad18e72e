"""What transfers show of pairs, which calls count, and what a restart or an absence changes."""

from msgspec.structs import replace

from api.generator import EndEvent, StageEvent
from discovery.registration import Role
from proxy.errors import Cause, NodeFailed
from proxy.health.breaker import BreakerState
from proxy.health.health import TIDY_S, Health
from proxy.routing.plan import Plan
from tests.unit.test_health import beat, breaks, cluster, node

LOST, TRANSFER = StageEvent("lost", 0), StageEvent("transfer", 0)


def pair(health: Health) -> Plan:
    return Plan(node(health, "p0"), node(health, "d0"))


def lose(health: Health, plan: Plan, begun: float, now: float) -> None:
    health.record_event(plan.decode, LOST, plan, begun=begun, now=now)


def states(health: Health, now: float) -> list[BreakerState]:
    return [state for _, state in health.unhealthy_pairs(now=now)]


def test_a_pair_is_no_good_while_its_prefill_node_is_not() -> None:
    health = cluster(1, 1)
    breaks(health, "p0", 1)
    plan = pair(health)
    assert plan.prefill is not None
    assert health.link_usable(plan.prefill, plan.decode, now=1)
    assert not health.pair_usable(plan.prefill, plan.decode, now=1)


def test_a_node_in_order_has_no_last_failure_to_tell() -> None:
    health = cluster(1, 1)
    breaks(health, "d0", 1)
    one = node(health, "d0")
    assert health.breaker_reason(one, now=1) == "it broke"
    beat(health.registry, "d0", 10)
    health.record_success(one, begun=10, now=10)
    assert health.breaker_reason(one, now=10) is None


def test_the_end_of_a_prefill_leg_closes_its_nodes_breaker() -> None:
    health = cluster(1, 1)
    breaks(health, "p0", 1)
    beat(health.registry, "p0", 10)
    plan = pair(health)
    assert plan.prefill is not None
    health.record_event(plan.prefill, EndEvent(), plan, begun=10, now=11)
    assert health.state(plan.prefill, now=11) is BreakerState.CLOSED


def test_transfers_that_began_before_a_pairs_breaker_opened_show_nothing() -> None:
    health = cluster(1, 1)
    plan = pair(health)
    lose(health, plan, 1, 2)
    lose(health, plan, 1, 3)
    assert health.opened["pair"] == 1
    health.record_event(plan.decode, TRANSFER, plan, begun=1, now=4)
    assert states(health, 4) == [BreakerState.HALF_OPEN]
    health.record_event(plan.decode, TRANSFER, plan, begun=4, now=5)
    assert states(health, 5) == []


def test_a_failure_between_two_nodes_is_the_pairs_alone() -> None:
    health = cluster(1, 1)
    between = NodeFailed("d0", "cut", pair=("p0", "d0"))
    health.record_failure(between, begun=1, now=1)
    assert states(health, 1) == [BreakerState.OPEN]
    assert not health.failures
    assert health.state(node(health, "d0"), now=1) is BreakerState.CLOSED


def test_a_pair_is_forgotten_once_a_node_of_it_is_gone_or_has_another_role() -> None:
    health = cluster(2, 1)
    plan = pair(health)
    lose(health, plan, 1, 1)
    health.forget(now=2)
    assert states(health, 2)
    health.registry.expire(now=100)
    beat(health.registry, "d0", 100)
    health.forget(now=101)
    assert not health.has_failures
    health = cluster(1, 1)
    lose(health, pair(health), 1, 1)
    turned = replace(node(health, "d0").registration, type=Role.PREFILL, turn=1)
    health.registry.apply(turned, now=2)
    health.forget(now=2)
    assert not health.has_failures


def test_a_pairs_breaker_is_forgotten_once_it_is_like_new() -> None:
    health = cluster(1, 1)
    plan = pair(health)
    lose(health, plan, 1, 1)
    health.record_event(plan.decode, TRANSFER, plan, begun=4, now=5)
    health.forget(now=5)
    assert health.has_failures
    health.forget(now=5 + health.rules.reset_s)
    assert not health.has_failures


def test_a_process_that_took_a_nodes_place_is_tried_at_once_but_once() -> None:
    health = cluster(1, 1)
    breaks(health, "d0", 1)
    beat(health.registry, "d0", 1.1, node_id="anew")
    anew = node(health, "anew")
    assert health.state(anew, now=1.2) is BreakerState.HALF_OPEN
    health.begin_call(Plan(None, anew), now=1.2)
    assert health.healthy([anew], now=1.3) == []
    breaks(health, "anew", 1.3)
    assert health.state(node(health, "anew"), now=1.4) is BreakerState.OPEN


def test_a_node_that_answers_with_errors_has_three_tries() -> None:
    health = cluster(0, 1)
    for _ in range(2):
        breaks(health, "d0", 1, Cause.NODE_ERROR)
    assert health.state(node(health, "d0"), now=1) is BreakerState.CLOSED
    breaks(health, "d0", 1, Cause.NODE_ERROR)
    assert health.state(node(health, "d0"), now=1) is BreakerState.OPEN


def test_a_node_that_is_forgotten_before_its_call_fails_has_no_breaker() -> None:
    health = cluster(0, 1)
    gone = node(health, "d0")
    health.registry.expire(now=100)
    health.record_failure(NodeFailed("d0", "silent"), [gone], begun=1, now=101)
    assert health.failures == {"d0:80": 1}
    assert not health.has_failures


def test_breakers_are_looked_through_now_and_then_and_not_with_every_call() -> None:
    class Counted(Health):
        looks = 0

        def forget(self, *, now: float) -> None:
            self.looks += 1
            super().forget(now=now)

    health = Counted(cluster(1, 1).registry)
    breaks(health, "d0", 1)
    for at in range(20):
        health.begin_call(Plan(None, node(health, "d0")), now=100 + at * TIDY_S / 10)
    assert health.looks == 2
