"""A plan in flight: what it claims, and what is known of its nodes' caches afterwards."""

from api.generator import PromptEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import FinishReason, Request, RequestId, Sampling
from proxy.routing.costs import Costs
from proxy.routing.in_flight import PlanInFlight, RoutingState
from proxy.routing.plan import Plan, RoutingQuery
from proxy.routing.prefix_hashes import STRIDE

TOKENS = 4 * STRIDE
TOKEN = TokenEvent((1,))


def node(role: Role, name: str) -> Node:
    layout = {"block_size": 16}
    return Node(Registration(role, f"{name}:80", "", name, "m", "f", layout), 0.0)


PREFILL, DECODE, OTHER = (
    node(Role.PREFILL, "p"),
    node(Role.DECODE, "d"),
    node(Role.DECODE, "other"),
)


def query(begin: int = 0) -> RoutingQuery:
    tokens = tuple(range(begin, begin + TOKENS))
    return RoutingQuery.of(Request(RequestId("r"), tokens, Sampling()), 0.0)


def flight(state: RoutingState, *, begin: int = 0) -> PlanInFlight:
    return PlanInFlight(state, Plan(PREFILL, DECODE), query(begin)).claim()


def decode(one: PlanInFlight) -> None:
    """Its prompt is run, and both nodes send a token."""
    one.record_event(PREFILL, PromptEvent(0), 1.0)
    one.record_event(PREFILL, TOKEN, 1.0)
    one.record_event(DECODE, TOKEN, 2.0)


def test_of_a_prompt_that_is_cached_to_its_end_one_token_is_computed() -> None:
    state = RoutingState()
    decode(flight(state))
    flight(state)
    assert state.claims.at(PREFILL).ahead.tokens == 1


def test_a_decode_node_that_answered_keeps_the_prompt() -> None:
    state = RoutingState()
    one = flight(state)
    decode(one)
    one.release(3.0)
    assert state.prefixes.cached(DECODE, query().prefix_hashes) == TOKENS


def test_a_decode_node_that_answered_and_has_less_has_forgotten_what_is_older() -> None:
    state = RoutingState()
    for begin in (0, 10_000):
        decode(flight(state, begin=begin))
    state.prefixes.send(DECODE, query(10_000).prefix_hashes).computed(0)
    assert state.prefixes.cached(DECODE, query().prefix_hashes) == 0


def test_a_decode_node_that_takes_over_begins_to_decode_with_its_first_token() -> None:
    state = RoutingState()
    one = flight(state)
    decode(one)
    one.replace_decode(OTHER, 3.0)
    assert state.claims.at(DECODE).decoding == state.claims.at(OTHER).decoding == 0
    one.record_event(OTHER, TOKEN, 4.0)
    assert state.claims.at(OTHER).decoding == 1


def test_a_plan_that_claimed_nothing_gives_nothing_back() -> None:
    state = RoutingState()
    PlanInFlight(state, Plan(PREFILL, DECODE), query()).release(1.0)
    assert len(state.claims) == len(state.prefixes) == 0


def test_only_an_answer_that_ended_by_itself_teaches_how_long_answers_are() -> None:
    state, taught = RoutingState(), RoutingState()
    for books, finish in ((state, FinishReason.LENGTH), (taught, FinishReason.STOP)):
        one = flight(books)
        decode(one)
        one.record_event(DECODE, TokenEvent((1, 1), finish=finish), 3.0)
    assert state.costs.mean_output == RoutingState().costs.mean_output
    expected = Costs()
    expected.learn_output(3)
    assert taught.costs.mean_output == expected.mean_output
