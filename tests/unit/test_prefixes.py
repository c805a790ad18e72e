"""Who has which tokens: by what was sent, what was said, and what there is room for."""

from random import Random

import pytest

from api.generator import EndEvent, PromptEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Load, Registration, Role
from engine.request import Request, RequestId, Sampling
from proxy.errors import NodeFailed
from proxy.routing.claims import Claims, PromptSize
from proxy.routing.in_flight import PlanInFlight, RoutingState
from proxy.routing.plan import Plan, RoutingQuery
from proxy.routing.prefix_aware import PrefixAware
from proxy.routing.prefix_hashes import STRIDE, hash_prefixes
from proxy.routing.prefixes import LEAST_NAMES, MOST_NODES, PrefixIndex


def node(number: int, start: str = "a", blocks: int = 0, states: int = 0) -> Node:
    load = Load(0, 0, blocks, blocks)
    layout = {"block_size": STRIDE, "state_blocks": states}
    said = Registration(
        Role.PREFILL, f"p{number}:80", "", f"{number}{start}", "m", "f", layout, load=load
    )
    return Node(said, 0.0)


def prompt(begin: int, strides: int) -> tuple[int, ...]:
    return tuple(range(begin, begin + strides * STRIDE))


def send(prefixes: PrefixIndex, to: Node, tokens: tuple[int, ...], cached: int = 0) -> None:
    prefixes.send(to, hash_prefixes(b"", tokens)).computed(cached)


def test_names_go_on_where_they_were() -> None:
    tokens = prompt(7, 5)
    known = hash_prefixes(b"s", tokens[: 2 * STRIDE])
    assert hash_prefixes(b"s", tokens, known) == hash_prefixes(b"s", tokens)
    assert hash_prefixes(b"s", tokens)[:2] == known
    assert not set(hash_prefixes(b"", tokens)) & set(hash_prefixes(b"s", tokens))


def test_the_longest_common_part_is_known() -> None:
    prefixes, tokens = PrefixIndex(), prompt(0, 4)
    send(prefixes, node(0), tokens)
    other = (*tokens[: 2 * STRIDE], *prompt(10_000, 3))
    assert prefixes.cached(node(0), hash_prefixes(b"", other)) == 2 * STRIDE
    assert prefixes.cached(node(1), hash_prefixes(b"", other)) == 0
    send(prefixes, node(1), other)
    assert prefixes.holders(hash_prefixes(b"", other), 2) == ["1a", "0a"]


def test_another_start_of_a_node_has_nothing() -> None:
    prefixes, tokens = PrefixIndex(), prompt(0, 4)
    send(prefixes, node(0), tokens)
    send(prefixes, node(0, "b"), prompt(50_000, 1))
    assert prefixes.cached(node(0, "b"), hash_prefixes(b"", tokens)) == 0
    assert prefixes.cached(node(0), hash_prefixes(b"", tokens)) == 0
    assert len(prefixes) == 1


def test_a_node_keeps_what_it_has_room_for_and_the_latest() -> None:
    prefixes, small = PrefixIndex(), node(0, blocks=9)
    for number in range(4):
        send(prefixes, small, prompt(100_000 * number, 4))
    assert len(prefixes) == 10
    assert prefixes.cached(small, hash_prefixes(b"", prompt(300_000, 4))) == 4 * STRIDE
    assert (
        prefixes.cached(small, hash_prefixes(b"", prompt(100_000, 4))) == 2 * STRIDE
    )  # beginnings
    assert prefixes.cached(small, hash_prefixes(b"", prompt(0, 4))) == 0


def test_what_is_known_is_bounded() -> None:
    prefixes = PrefixIndex(most=3 * LEAST_NAMES)
    for number in range(50):
        send(prefixes, node(number % 3), prompt(100_000 * number, 40))
    assert len(prefixes) <= 3 * LEAST_NAMES


def test_who_had_less_has_forgotten_what_is_older_too() -> None:
    prefixes = PrefixIndex()
    old, missed, late = (prompt(100_000 * number, 4) for number in range(3))
    for tokens in (old, missed, late):
        send(prefixes, node(0), tokens)
    send(prefixes, node(0), missed, cached=STRIDE)
    assert prefixes.cached(node(0), hash_prefixes(b"", old)) == 0
    assert prefixes.cached(node(0), hash_prefixes(b"", missed)) == 4 * STRIDE
    assert prefixes.cached(node(0), hash_prefixes(b"", late)) == 4 * STRIDE


def test_who_keeps_states_may_have_kv_that_it_cannot_use() -> None:
    prefixes, keeping = PrefixIndex(), node(0, states=2)
    older, tokens = prompt(50_000, 3), prompt(0, 4)
    send(prefixes, keeping, older)
    send(prefixes, keeping, tokens)
    send(prefixes, keeping, tokens, cached=0)
    for known in (older, tokens):
        assert prefixes.cached(keeping, hash_prefixes(b"", known)) == len(known)


def test_who_had_less_of_a_beginning_has_forgotten_what_went_on_from_it() -> None:
    prefixes, begun = PrefixIndex(), prompt(0, 2)
    send(prefixes, node(0), (*begun, *prompt(10_000, 2)))
    send(prefixes, node(0), (*begun, *prompt(20_000, 2)), cached=0)
    names = hash_prefixes(b"", (*begun, *prompt(10_000, 2)))
    assert prefixes.cached(node(0), names) == 2 * STRIDE


def test_what_was_sent_again_is_not_taken_back_with_the_first() -> None:
    prefixes, names = PrefixIndex(), hash_prefixes(b"", prompt(0, 4))
    first, again = prefixes.send(node(0), names), prefixes.send(node(0), names)
    first.take_back()
    again.computed(0)
    assert prefixes.cached(node(0), names) == 4 * STRIDE


def test_of_too_many_nodes_the_one_that_was_longest_sent_nothing_is_forgotten() -> None:
    prefixes, tokens = PrefixIndex(), prompt(0, 1)
    for number in (*range(MOST_NODES), 0, MOST_NODES):
        send(prefixes, node(number), tokens)
    names = hash_prefixes(b"", tokens)
    assert prefixes.cached(node(0), names) == STRIDE
    assert prefixes.cached(node(1), names) == 0


def test_no_more_holders_are_named_than_asked_for_and_none_is_kept_without_a_node() -> None:
    prefixes, names = PrefixIndex(), hash_prefixes(b"", prompt(0, 2))
    sent = [prefixes.send(node(number), names) for number in range(5)]
    assert prefixes.holders(names, 2) == ["0a", "1a"]
    for one in sent:
        one.take_back()
    assert not prefixes._holders


def test_what_is_still_on_its_way_is_not_taken_for_forgotten() -> None:
    prefixes, tokens = PrefixIndex(), prompt(0, 4)
    send(prefixes, node(0), prompt(500_000, 4))
    first = prefixes.send(node(0), hash_prefixes(b"", tokens))
    prefixes.send(node(0), hash_prefixes(b"", tokens)).computed(0)
    first.computed(0)
    assert prefixes.cached(node(0), hash_prefixes(b"", prompt(500_000, 4))) == 4 * STRIDE


def test_a_prompt_that_is_all_there_but_its_last_block_is_not_taken_for_forgotten() -> None:
    prefixes, old, again = PrefixIndex(), prompt(0, 4), prompt(100_000, 4)
    for tokens in (old, again):
        send(prefixes, node(0), tokens)
    send(prefixes, node(0), again, cached=3 * STRIDE)  # it runs at least one block
    assert prefixes.cached(node(0), hash_prefixes(b"", old)) == 4 * STRIDE


@pytest.mark.parametrize(("scored", "known"), [(None, 0), (1, 4 * STRIDE)])
def test_a_prompt_that_is_run_to_be_scored_says_nothing_of_what_is_forgotten(
    scored: int | None, known: int
) -> None:
    books, one, old, again = RoutingState(), node(0), prompt(0, 4), prompt(100_000, 4)
    for tokens in (old, again):
        send(books.prefixes, one, tokens)
    request = Request(RequestId("r"), again, Sampling(prompt_logprobs=scored))
    flight = PlanInFlight(books, Plan(None, one), RoutingQuery.of(request, 0.0)).claim()
    for event in (PromptEvent(0), TokenEvent((1,))):
        flight.record_event(one, event, 1.0)
    flight.release(2.0)
    assert books.prefixes.cached(one, hash_prefixes(b"", old)) == known


def test_what_is_there_by_the_nodes_own_word_is_not_taken_back() -> None:
    prefixes, names = PrefixIndex(), hash_prefixes(b"", prompt(0, 6))
    prefixes.send(node(0), names).take_back(3 * STRIDE + 16)
    assert prefixes.cached(node(0), names) == 3 * STRIDE
    assert prefixes.holders(names[:4], 2) == ["0a"]
    prefixes.send(node(0), names).take_back(STRIDE)
    assert prefixes.cached(node(0), names) == 3 * STRIDE


def test_an_abandoned_request_teaches_that_a_node_has_more_than_was_sent_there() -> None:
    """Another proxy's prompt, or one from before this one's start."""
    books, tokens, nodes = RoutingState(), prompt(0, 8), [node(number) for number in range(4)]
    flight = PlanInFlight(books, Plan(nodes[2], node(9)), ask(tokens)).claim()
    flight.record_event(nodes[2], PromptEvent(6 * STRIDE), 1.0)
    flight.release(2.0)
    policy = PrefixAware(books.prefixes, books.claims, Random(0))
    later = ask((*tokens[: 7 * STRIDE], *prompt(90_000, 1)))
    assert books.prefixes.cached(nodes[2], later.prefix_hashes) == 6 * STRIDE
    assert {policy.choose(nodes, later, None).node_id for _ in range(20)} == {"2a"}


def test_what_a_node_of_vllm_has_run_stays_known_when_nobody_goes_on() -> None:
    """It says no token: its leg is over, and then decode fails."""
    books, names = RoutingState(), ask(prompt(0, 8)).prefix_hashes
    flight = PlanInFlight(books, Plan(node(2), node(9)), ask(prompt(0, 8)))
    flight.claim().record_event(flight.plan.first, EndEvent(), 1.0)
    flight.record_event(flight.plan.decode, NodeFailed("n", "broke off"), 2.0)
    flight.release(2.0)
    assert books.prefixes.cached(node(2), names) == 8 * STRIDE
    assert books.prefixes.cached(node(9), names) == 0


def ask(tokens: tuple[int, ...]) -> RoutingQuery:
    return RoutingQuery.of(Request(RequestId("r"), tokens, Sampling()), 0.0)


def test_a_prompt_goes_where_it_is_known_until_that_node_has_too_much_to_do() -> None:
    claims, prefixes, tokens = Claims(), PrefixIndex(), prompt(0, 8)
    policy = PrefixAware(prefixes, claims, Random(0))
    nodes = [node(number) for number in range(30)]
    nodes.sort(key=lambda one: one.node_id)
    send(prefixes, nodes[17], tokens)
    assert {policy.choose(nodes, ask(tokens), None).node_id for _ in range(20)} == {
        nodes[17].node_id
    }
    for _ in range(3):
        claims.claim(nodes[17], 1000, 0.0, PromptSize(8 * STRIDE, 0))
    assert policy.choose(nodes, ask(tokens), None) is not nodes[17]
