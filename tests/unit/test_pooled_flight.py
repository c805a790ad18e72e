"""Prompts that are pooled are in the books: plans see them, and nodes are measured by them."""

from random import Random

from discovery.registration import Role
from engine.request import Request, RequestId
from proxy.routing.building import build_planner
from proxy.routing.claims import PromptWork
from proxy.routing.plan import RoutingQuery
from proxy.routing.planner import Planner
from tests.unit.test_siblings import nodes

BUSY, IDLE = PREFILLS = nodes(Role.PREFILL, 2)
DECODES = nodes(Role.DECODE, 1)


def planned() -> Planner:
    return build_planner("planned", "planned", "never", Random(0))


def test_an_answers_prompt_goes_where_nothing_is_being_pooled() -> None:
    for first, other in (PREFILLS, PREFILLS[::-1]):
        planner = planned()
        flight = planner.pool(first, [2000, 3000], 0.0)
        ask = RoutingQuery.of(Request(RequestId("r"), tuple(range(500))), 0.0)
        for _ in range(8):
            assert planner.plan(ask, DECODES, lambda _: PREFILLS).prefill is other
            assert planner.choose(PREFILLS, ask, None) is other
        flight.release(1.0)
        assert {planner.choose(PREFILLS, ask, None) for _ in range(32)} == set(PREFILLS)


def test_what_was_taken_is_given_back_whether_it_ran_or_not() -> None:
    planner = planned()
    for ran in (True, False):
        flight = planner.pool(BUSY, [10, 20, 30], 0.0)
        share = planner.state.claims.at(BUSY)
        assert (share.requests, share.tokens, share.ahead.tokens) == (3, 60, 60)
        if ran:
            flight.prompts_finished(1.0)
        flight.release(1.0)
        assert (share.requests, share.tokens, share.ahead) == (0, 0, PromptWork())


def test_a_node_is_known_to_be_slow_by_what_it_has_pooled() -> None:
    planner, ask = planned(), RoutingQuery.of(Request(RequestId("r"), tuple(range(500))), 100.0)
    for number in range(20):
        for node, seconds in ((BUSY, 5.0), (IDLE, 0.05)):
            flight = planner.pool(node, [500], float(number))
            flight.prompts_finished(number + seconds)
            flight.release(number + seconds)
    assert {planner.choose(PREFILLS, ask, None) for _ in range(16)} == {IDLE}
