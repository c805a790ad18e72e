"""No decode node is given more than its limit while another one has room for it."""

from random import Random

import pytest

from discovery.registration import Role
from engine.request import Request, RequestId, Sampling
from proxy.admission.limits import Limits
from proxy.config import Policy
from proxy.routing.building import build_planner
from proxy.routing.flight import Flight
from proxy.routing.plan import Ask
from proxy.routing.planner import Planner
from proxy.routing.room import Room
from tests.unit.test_admission import door
from tests.unit.test_siblings import nodes

POLICIES = ["planned", "prefix_aware", "least_loaded", "session", "round_robin", "random"]
DECODES = nodes(Role.DECODE, 3)


def ask(number: int, length: int = 10) -> Ask:
    """All of one session, and all alike: what policies would send to one node."""
    sampling = Sampling(max_tokens=10)
    request = Request(RequestId(f"r{number}"), (1,) * length, sampling, session="one")
    return Ask.of(request, now=0.0)


def go(planner: Planner, one: Ask) -> Flight:
    return planner.depart(planner.plan(one, DECODES, lambda _: ()), one).take_off()


@pytest.mark.parametrize("policy", POLICIES)
def test_each_has_its_limit_before_any_has_more(policy: Policy) -> None:
    planner = build_planner(policy, policy, "never", Random(0), Room(requests=2))
    flights = [go(planner, ask(number)) for number in range(6)]
    taken = [planner.books.claims.at(one).requests for one in DECODES]
    assert taken == [2, 2, 2]
    freed = flights[3].plan.decode
    flights[3].land(1.0)
    assert go(planner, ask(6)).plan.decode is freed


def test_tokens_count_as_well_and_one_that_is_larger_goes_alone() -> None:
    planner = build_planner("planned", "planned", "never", Random(0), Room(tokens=50))
    large = go(planner, ask(0, length=500)).plan.decode
    others = [go(planner, ask(number, length=25)).plan.decode for number in (1, 2)]
    assert len({large, *others}) == 3


def test_where_nobody_has_room_whoever_lost_its_node_goes_on_all_the_same() -> None:
    planner = build_planner("planned", "planned", "never", Random(0), Room(requests=1))
    for number in range(3):
        go(planner, ask(number))
    assert go(planner, ask(3)).plan.decode in DECODES
    assert planner.choose(DECODES, ask(4), DECODES[0]) in DECODES


def test_who_waits_for_one_models_nodes_holds_up_nobody_of_another() -> None:
    """Not even those of the same key, who stand behind him."""
    large, small = ("large", "f"), ("small", "f")
    crowd = door(Limits(node_requests=1))
    crowd.of_models = {large: 1, small: 2}
    first, waits = crowd.come(model=large), crowd.come(model=large)
    assert [crowd.come(model=small).began is None for _ in range(3)] == [False, False, True]
    assert waits.began is None
    crowd.end(first)
    assert waits.began is not None
    assert len(crowd.admission.line) == 1
