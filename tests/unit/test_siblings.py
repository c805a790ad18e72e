"""Choices of one request go where the first one went, and requests of others do not."""

from collections.abc import Sequence
from random import Random

import pytest

from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import Request, RequestId, Sampling
from proxy.config import Policy
from proxy.routing.building import build_planner
from proxy.routing.plan import Plan, PlanReason, RoutingQuery
from proxy.routing.planner import Planner
from proxy.routing.sibling_plans import MOST_KNOWN


def nodes(role: Role, count: int) -> list[Node]:
    return [
        Node(Registration(role, f"{role}{number}:80", "", f"{role}{number}"), 0.0)
        for number in range(count)
    ]


def planner(policy: Policy = "round_robin") -> Planner:
    return build_planner(policy, policy, "never", Random(0))


def plan(
    planner: Planner,
    decodes: Sequence[Node],
    name: str,
    sample: int = 0,
    seed: int = 1,
    prefills: Sequence[Node] = (),
) -> Plan:
    sampling = Sampling(seed=seed, sample_index=sample)
    request = Request(RequestId(name), (1,), sampling)
    found = planner.plan(RoutingQuery.of(request, now=0), decodes, lambda _: prefills)
    planner.start(found, RoutingQuery.of(request, now=0)).claim()
    return found


@pytest.mark.parametrize(
    "policy", ["planned", "prefix_aware", "least_loaded", "session", "round_robin", "random"]
)
def test_choices_of_one_request_go_together(policy: Policy) -> None:
    some, prefills, plans = nodes(Role.DECODE, 3), nodes(Role.PREFILL, 3), planner(policy)
    for outer in ("chat", "other"):
        each = [plan(plans, some, f"{outer}-{n}", n, prefills=prefills) for n in range(4)]
        assert len({(one.prefill, one.decode) for one in each}) == 1
        assert each[0].prefill is not None
        assert [one.why for one in each] == [PlanReason.POLICY, *[PlanReason.CHOICE] * 3]


def test_requests_of_one_name_do_not() -> None:
    plans, some = planner(), nodes(Role.DECODE, 3)
    chosen = [plan(plans, some, name).decode for name in ("chat-0", "chat-0", "chat")]
    assert len(set(chosen)) == 3
    assert plan(plans, some, "chat-1", 1, seed=2).decode is some[0]


def test_a_node_that_is_gone_is_not_waited_for() -> None:
    plans, some = planner(), nodes(Role.DECODE, 2)
    first = plan(plans, some, "chat-0").decode
    rest = [node for node in some if node is not first]
    assert plan(plans, rest, "chat-1", 1).decode is rest[0]
    assert plan(plans, some, "chat-2", 2).decode is rest[0]  # nor left again


def test_what_is_remembered_is_bounded() -> None:
    plans = planner()
    for number in range(3 * MOST_KNOWN):
        plan(plans, nodes(Role.DECODE, 1), f"{number}-0")
    assert len(plans.siblings._plans) == MOST_KNOWN
