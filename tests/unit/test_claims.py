"""What is in flight is counted exactly, whatever becomes of a request."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    PromptEvent,
    StageEvent,
    TokenEvent,
)
from discovery.node import Node
from discovery.registration import Load, Registration, Role
from engine.request import FinishReason, Request, RequestId
from proxy.errors import NodeFailed
from proxy.routing.building import build_planner
from proxy.routing.claims import Claims, PromptSize, PromptWork
from proxy.routing.costs import of_prompt
from proxy.routing.in_flight import PlanInFlight
from proxy.routing.plan import Plan, RoutingQuery
from proxy.routing.prefix_hashes import STRIDE


def node(role: Role, number: int, load: Load = Load(), heard_at: float = 0.0) -> Node:  # noqa: B008
    name = f"{role}{number}"
    return Node(Registration(role, f"{name}:80", "", name, "m", "f", load=load), heard_at)


PREFILLS = [node(Role.PREFILL, number) for number in range(3)]
DECODES = [node(Role.DECODE, number) for number in range(3)]
EVENTS: list[Event | NodeFailed] = [
    PromptEvent(0),
    PromptEvent(10_000),
    TokenEvent((1,)),
    TokenEvent((1, 2, 3), FinishReason.STOP),
    StageEvent("transfer", 0.1, 1000),
    FailedEvent("no", retryable=True),
    EndEvent(),
    NodeFailed("x", "broke off"),
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "hear", "move", "land"]),
        st.integers(0, 7),
        st.integers(0, 5),
        st.sampled_from(EVENTS),
        st.floats(0, 10),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=STEPS, local=st.sampled_from(["never", "auto", "always"]))
def test_whatever_happens_all_is_given_back(steps: list[tuple], local: str) -> None:  # type: ignore[type-arg]
    planner = build_planner("planned", "planned", local, Random(0))  # type: ignore[arg-type]
    flights, now = list[PlanInFlight](), 0.0
    for what, which, at, event, seconds in steps:
        now += seconds
        if what == "begin" or not flights:
            prompt = tuple(range(which, which + STRIDE * (1 + at)))
            ask = RoutingQuery.of(Request(RequestId(str(now)), prompt), now)
            plan = planner.plan(ask, DECODES, lambda _: PREFILLS)
            flights.append(planner.start(plan, ask).claim())
            continue
        flight = flights[which % len(flights)]
        if what == "hear":
            flight.record_event((PREFILLS + DECODES)[at], event, now)
        elif what == "move":
            flight.replace_decode(DECODES[at % 3], now)
        else:
            flight.release(now)
        living = [one for one in flights if not one._decode_claim.ended]
        assert len(planner.state.claims) >= len(living)
    for flight in flights:
        flight.release(now)
        flight.release(now)  # once more makes no difference
    for share in planner.state.claims.shares.values():
        assert (share.requests, share.decoding, share.tokens) == (0, 0, 0)
        assert share.ahead == PromptWork()
    for cache in planner.state.prefixes._caches.values():
        assert not cache.pending


def test_a_request_that_never_ran_leaves_no_names_behind() -> None:
    planner = build_planner("prefix_aware", "prefix_aware", "never", Random(0))
    ask = RoutingQuery.of(Request(RequestId("r"), tuple(range(4 * STRIDE))), 0.0)
    plan = planner.plan(ask, DECODES, lambda _: PREFILLS)
    assert plan.prefill
    planner.start(plan, ask).claim().release(1.0)
    assert len(planner.state.prefixes) == 0
    flight = planner.start(plan, ask).claim()
    flight.record_event(plan.prefill, TokenEvent((1,)), 2.0)
    flight.release(3.0)
    assert planner.state.prefixes.cached(plan.prefill, ask.prefix_hashes) == 4 * STRIDE
    assert planner.state.prefixes.cached(plan.decode, ask.prefix_hashes) == 0


def test_what_a_node_speaks_of_is_not_counted_twice() -> None:
    claims, now = Claims(), 0.0
    busy = node(Role.DECODE, 0, Load(1, 4), heard_at=1.0)
    assert claims.requests_at(busy) == 5
    mine = [claims.claim(node(Role.DECODE, 0), 10, now) for _ in range(3)]
    assert claims.requests_at(busy) == 5  # two are somebody else's
    mine.append(claims.claim(busy, 10, now))
    assert claims.requests_at(busy) == 6
    for claim in mine:
        claim.end(now)
    assert claims.requests_at(busy) == 2


def test_one_that_ended_after_its_node_spoke_is_nobody_elses() -> None:
    claims = Claims()
    claim = claims.claim(node(Role.DECODE, 0), 10, 0.0)
    claim.end(1.5)
    assert claims.requests_at(node(Role.DECODE, 0, Load(0, 1), heard_at=1.0)) == 0


def test_a_node_is_measured_by_its_busy_time() -> None:
    claims, prompt = Claims(), PromptSize(100, 0)
    one = claims.claim(PREFILLS[0], 100, 10.0, prompt)
    two = claims.claim(PREFILLS[0], 100, 10.0, prompt)
    assert one.prompt_finished(11.0) is None  # more is to come
    measured = two.prompt_finished(11.0)
    assert measured
    assert (measured.work.prompts, measured.work.tokens, measured.seconds) == (2, 200, 1.0)
    claims.claim(PREFILLS[0], 100, 20.0, prompt).end(25.0)  # what was cut says nothing
    again = claims.claim(PREFILLS[0], 100, 30.0, prompt).prompt_finished(30.5)
    assert again
    assert again.seconds == pytest.approx(0.5)


def test_a_node_of_vllm_is_measured_by_the_end_of_its_leg() -> None:
    """It keeps its token to itself, and is done when its answer is whole."""
    planner = build_planner("planned", "planned", "never", Random(0))
    vllm = Node(Registration(Role.PREFILL, "v:80", ""), 0.0)
    for number in range(20):
        now = 10.0 * number
        prompt = tuple(range(1000 * number, 1000 * number + 1000))
        ask = RoutingQuery.of(Request(RequestId(str(number)), prompt), now)
        flight = planner.start(Plan(vllm, DECODES[0]), ask).claim()
        flight.record_event(vllm, EndEvent(), now + 2.0)
        flight.record_event(DECODES[0], TokenEvent((1,)), now + 3.0)
        flight.release(now + 4.0)
    foretold_s = planner.state.costs.prompt(vllm).at(of_prompt(1000, 500_000))
    assert foretold_s == pytest.approx(2.0, rel=0.1)
