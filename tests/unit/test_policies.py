"""Each policy keeps its promise, and all of them work through one planner."""

import gc
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import get_args

import pytest
from msgspec.structs import replace

from api.generator import TokenEvent
from discovery.node import Node
from discovery.registration import Load, Registration, Role
from engine.request import Request, RequestId, Sampling
from proxy.config import LocalPrefill, Policy, ProxyConfig
from proxy.routing.building import build_planner
from proxy.routing.claims import Claims
from proxy.routing.plan import PlanReason, RoutingQuery
from proxy.routing.policies import LeastLoaded, two_of
from proxy.routing.sessions import MOST_CROWDS, MOST_KNOWN, SessionAffinity


def nodes(role: Role, count: int, load: Load | None = None) -> list[Node]:
    return [
        Node(
            Registration(role, f"{role}{i:03}:80", "", f"{role}{i:03}", load=load or Load()), 0
        )
        for i in range(count)
    ]


def ask(session: str = "", tokens: int = 1000) -> RoutingQuery:
    sampling = Sampling(max_tokens=100)
    request = Request(RequestId("r"), tuple(range(tokens)), sampling, session=session)
    return RoutingQuery.of(request, 0.0)


def test_least_loaded_is_the_better_of_two() -> None:
    claims = Claims()
    policy, two = LeastLoaded(claims, Random(0)), nodes(Role.DECODE, 2)
    claim = claims.claim(two[0], 10, 0.0)  # not even said by the node yet
    assert all(policy.choose(two, ask(), None) is two[1] for _ in range(20))
    claim.end(1.0)
    full = [two[0], *nodes(Role.DECODE, 2, Load(0, 0, 100, 100))[1:]]
    assert all(policy.choose(full, ask(), None) is full[1] for _ in range(20))


def test_least_loaded_does_not_send_all_to_the_emptiest() -> None:
    claims, some = Claims(), nodes(Role.DECODE, 20, Load(5, 5, 10, 10))
    some[7] = nodes(Role.DECODE, 8)[7]
    policy = LeastLoaded(claims, Random(0))
    chosen = Counter(policy.choose(some, ask(), None).node_id for _ in range(200))
    assert 0 < chosen[some[7].node_id] < 60


@pytest.mark.parametrize("count", [1, 2, 5])
def test_two_nodes_are_any_two_that_differ(count: int) -> None:
    some, chance = nodes(Role.DECODE, count), Random(0)
    drawn = Counter(two_of(some, chance) for _ in range(400))
    pairs = {(one, two) for one in some for two in some if one is not two}
    assert drawn.keys() == (pairs or {(some[0], some[0])})
    assert max(drawn.values()) < 3 * min(drawn.values())


def test_a_session_stays_and_only_those_of_a_lost_node_move() -> None:
    some = nodes(Role.DECODE, 8)
    policy = SessionAffinity(LeastLoaded(Claims(), Random(0)))
    names = [f"session {number}" for number in range(400)]
    before = {name: policy.choose(some, ask(name, 1), None) for name in names}
    assert before == {name: policy.choose(some, ask(name, 1), None) for name in names}
    counts = Counter(one.node_id for one in before.values())
    assert len(counts) == 8
    assert max(counts.values()) < 2.5 * 400 / 8
    lost = some[3]
    rest = [one for one in some if one is not lost]
    after = {name: policy.choose(rest, ask(name, 1), None) for name in names}
    assert all(after[name] is before[name] for name in names if before[name] is not lost)
    assert {name: policy.choose(some, ask(name, 1), None) for name in names} == before


def calls_of(work: Callable[[], object]) -> int:
    """How many functions it calls, of Python's and of C; none collects garbage meanwhile."""
    counted = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def test_a_session_costs_no_more_beside_other_models_and_nodes_in_trouble() -> None:
    """One ring for all: what a plan may not choose is passed by, and nothing is built anew."""
    policy = SessionAffinity(LeastLoaded(Claims(), Random(0)))
    some = nodes(Role.DECODE, 40)
    crowds = [some[:20], some[20:], some[1:20], some[20:30]]
    for one in crowds:
        policy.choose(one, ask("s"), None)
    for number in range(50):
        crowd, asked = crowds[number % len(crowds)], ask(f"session {number}", 1)
        assert calls_of(partial(policy.choose, crowd, asked, None)) < 200
        assert policy.choose(crowd, asked, None) in crowd


def test_sessions_find_their_nodes_after_more_have_come_and_gone_than_are_remembered() -> None:
    policy = SessionAffinity(LeastLoaded(Claims(), Random(0)))
    some = nodes(Role.DECODE, 4)
    names = [f"session {number}" for number in range(40)]
    before = [policy.choose(some, ask(name, 1), None) for name in names]
    for start in range(0, MOST_KNOWN, 512):
        gone = nodes(Role.PREFILL, start + 512)[start:]
        assert policy.choose(gone, ask("s", 1), None) in gone
    assert [policy.choose(some, ask(name, 1), None) for name in names] == before


def test_of_what_was_chosen_from_only_the_latest_is_kept() -> None:
    """Where nodes have limits, each plan chooses from a list of its own."""
    policy, some = SessionAffinity(LeastLoaded(Claims(), Random(0))), nodes(Role.DECODE, 4)
    lists = [[*some] for _ in range(3 * MOST_CROWDS)]
    before = [*map(sys.getrefcount, lists)]
    for number in range(len(lists)):
        policy.choose(lists[number], ask("s", 1), None)
    after = map(sys.getrefcount, lists)
    kept = [now > then for now, then in zip(after, before, strict=True)]
    assert kept == [False] * 2 * MOST_CROWDS + [True] * MOST_CROWDS


def test_who_has_no_session_goes_to_the_least_loaded() -> None:
    claims, two = Claims(), nodes(Role.DECODE, 2)
    policy = SessionAffinity(LeastLoaded(claims, Random(0)))
    claims.claim(two[0], 10, 0.0)
    assert policy.choose(two, ask(), None) is two[1]


@pytest.mark.parametrize("policy", get_args(Policy))
@pytest.mark.parametrize("local", get_args(LocalPrefill))
def test_every_policy_plans_with_and_without_prefill_nodes(
    policy: Policy, local: LocalPrefill
) -> None:
    planner = build_planner(policy, policy, local, Random(0))
    prefills, decodes = nodes(Role.PREFILL, 9), nodes(Role.DECODE, 11)
    plan = planner.plan(ask(), decodes, lambda _: prefills)
    assert plan.decode in decodes
    assert plan.estimate
    assert plan.estimate.finish_s > plan.estimate.first_token_s > 0
    if local != "auto":
        assert (plan.prefill is None) == (local == "always")
    alone = planner.plan(ask(), decodes, lambda _: ())
    assert alone.prefill is None
    whole = {
        "never": PlanReason.NO_PREFILL,
        "auto": PlanReason.CHEAPER,
        "always": PlanReason.ALWAYS,
    }[local]
    assert plan.why is (PlanReason.POLICY if plan.prefill else whole)
    assert alone.why is (PlanReason.ALWAYS if local == "always" else PlanReason.NO_PREFILL)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_a_prompt_goes_where_there_is_context_for_it(policy: Policy) -> None:
    planner, decodes = build_planner(policy, policy, "never", Random(0)), nodes(Role.DECODE, 2)
    prefills = nodes(Role.PREFILL, 9)
    for index, prefill in enumerate(prefills):
        prefill.registration = replace(prefill.registration, max_model_len=100 * (index + 1))
    for tokens, fit in ((50, 9), (799, 2), (800, 1), (900, 0)):
        plans = [planner.plan(ask("s", tokens), decodes, lambda _: prefills) for _ in range(20)]
        chosen = {plan.prefill for plan in plans}
        assert chosen <= ({*prefills[9 - fit :]} if fit else {None})
        assert {plan.why for plan in plans} == {
            PlanReason.POLICY if fit else PlanReason.NO_PREFILL
        }


@pytest.mark.parametrize("policy", ["planned", "least_loaded"])
def test_a_plan_says_why_there_is_no_prefill_node_in_it(policy: Policy) -> None:
    """With busy prefill nodes it is cheaper without, where that may be."""
    planner = build_planner(policy, policy, "auto", Random(0))
    prefills, decodes = nodes(Role.PREFILL, 2, Load(900, 9)), nodes(Role.DECODE, 2)
    plan = planner.plan(ask(), decodes, lambda _: prefills)
    assert (plan.prefill, plan.why) == (None, PlanReason.CHEAPER)


def test_roles_have_policies_of_their_own() -> None:
    config = ProxyConfig(prefill_policy="prefix_aware", decode_policy="round_robin")
    assert config.policies == ("prefix_aware", "round_robin")
    assert ProxyConfig(policy="session").policies == ("session", "session")
    planner = build_planner(*config.policies, "never", Random(0))
    prefills, decodes = nodes(Role.PREFILL, 4), nodes(Role.DECODE, 4)
    chosen = list[tuple[Node | None, Node]]()
    for _ in range(4):
        plan = planner.plan(ask(), decodes, lambda _: prefills)
        flight = planner.start(plan, ask()).claim()
        flight.record_event(plan.first, TokenEvent((1,)), 1.0)
        flight.release(2.0)
        chosen.append((plan.prefill, plan.decode))
    assert len({decode.node_id for _, decode in chosen}) == 4
    assert len({prefill for prefill, _ in chosen}) == 1


@pytest.mark.parametrize("policy", get_args(Policy))
def test_all_of_a_thousand_nodes_get_work(policy: Policy) -> None:
    planner, decodes = (
        build_planner(policy, policy, "never", Random(0)),
        nodes(Role.DECODE, 500),
    )
    prefills, used = nodes(Role.PREFILL, 500), set[Node | None]()
    for number in range(2000):
        one = RoutingQuery.of(
            Request(RequestId("r"), tuple(range(number, number + 64)), session=str(number)), 0.0
        )
        plan = planner.plan(one, decodes, lambda _: prefills)
        planner.start(plan, one).claim()
        used |= {plan.prefill, plan.decode}
    assert len(used) > 700
