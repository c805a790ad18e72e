"""Who has which tokens: by what was sent, what was said, and what there is room for."""

from random import Random

from discovery.registration import Load, Registration, Role
from discovery.registry import Node
from engine.request import Request, RequestId, Sampling
from proxy.routing.claims import Claims, Prompt
from proxy.routing.names import STRIDE, names_of
from proxy.routing.plan import Ask
from proxy.routing.prefix_aware import PrefixAware
from proxy.routing.prefixes import LEAST_NAMES, Prefixes


def node(number: int, start: str = "a", blocks: int = 0) -> Node:
    load = Load(0, 0, blocks, blocks)
    layout = {"block_size": STRIDE}
    said = Registration(
        Role.PREFILL, f"p{number}:80", "", f"{number}{start}", "m", "f", layout, load=load
    )
    return Node(said, 0.0)


def prompt(begin: int, strides: int) -> tuple[int, ...]:
    return tuple(range(begin, begin + strides * STRIDE))


def send(prefixes: Prefixes, to: Node, tokens: tuple[int, ...], cached: int = 0) -> None:
    prefixes.send(to, names_of("", tokens)).computed(cached)


def test_names_go_on_where_they_were() -> None:
    tokens = prompt(7, 5)
    known = names_of("s", tokens[: 2 * STRIDE])
    assert names_of("s", tokens, known) == names_of("s", tokens)
    assert names_of("s", tokens)[:2] == known
    assert not set(names_of("", tokens)) & set(names_of("s", tokens))


def test_the_longest_common_part_is_known() -> None:
    prefixes, tokens = Prefixes(), prompt(0, 4)
    send(prefixes, node(0), tokens)
    other = (*tokens[: 2 * STRIDE], *prompt(10_000, 3))
    assert prefixes.cached(node(0), names_of("", other)) == 2 * STRIDE
    assert prefixes.cached(node(1), names_of("", other)) == 0
    send(prefixes, node(1), other)
    assert prefixes.holders(names_of("", other), 2) == ["1a", "0a"]


def test_another_start_of_a_node_has_nothing() -> None:
    prefixes, tokens = Prefixes(), prompt(0, 4)
    send(prefixes, node(0), tokens)
    send(prefixes, node(0, "b"), prompt(50_000, 1))
    assert prefixes.cached(node(0, "b"), names_of("", tokens)) == 0
    assert prefixes.cached(node(0), names_of("", tokens)) == 0
    assert len(prefixes) == 1


def test_a_node_keeps_what_it_has_room_for_and_the_latest() -> None:
    prefixes, small = Prefixes(), node(0, blocks=9)
    for number in range(4):
        send(prefixes, small, prompt(100_000 * number, 4))
    assert len(prefixes) == 10
    assert prefixes.cached(small, names_of("", prompt(300_000, 4))) == 4 * STRIDE
    assert prefixes.cached(small, names_of("", prompt(100_000, 4))) == 2 * STRIDE  # beginnings
    assert prefixes.cached(small, names_of("", prompt(0, 4))) == 0


def test_what_is_known_is_bounded() -> None:
    prefixes = Prefixes(most=3 * LEAST_NAMES)
    for number in range(50):
        send(prefixes, node(number % 3), prompt(100_000 * number, 40))
    assert len(prefixes) <= 3 * LEAST_NAMES


def test_who_had_less_has_forgotten_what_is_older_too() -> None:
    prefixes = Prefixes()
    old, missed, late = (prompt(100_000 * number, 4) for number in range(3))
    for tokens in (old, missed, late):
        send(prefixes, node(0), tokens)
    send(prefixes, node(0), missed, cached=STRIDE)
    assert prefixes.cached(node(0), names_of("", old)) == 0
    assert prefixes.cached(node(0), names_of("", missed)) == 4 * STRIDE
    assert prefixes.cached(node(0), names_of("", late)) == 4 * STRIDE


def test_what_is_still_on_its_way_is_not_taken_for_forgotten() -> None:
    prefixes, tokens = Prefixes(), prompt(0, 4)
    send(prefixes, node(0), prompt(500_000, 4))
    first = prefixes.send(node(0), names_of("", tokens))
    prefixes.send(node(0), names_of("", tokens)).computed(0)
    first.computed(0)
    assert prefixes.cached(node(0), names_of("", prompt(500_000, 4))) == 4 * STRIDE


def ask(tokens: tuple[int, ...]) -> Ask:
    return Ask.of(Request(RequestId("r"), tokens, Sampling()), 0.0)


def test_a_prompt_goes_where_it_is_known_until_that_node_has_too_much_to_do() -> None:
    claims, prefixes, tokens = Claims(), Prefixes(), prompt(0, 8)
    policy = PrefixAware(prefixes, claims, Random(0))
    nodes = [node(number) for number in range(30)]
    nodes.sort(key=lambda one: one.node_id)
    send(prefixes, nodes[17], tokens)
    assert {policy.choose(nodes, ask(tokens), None).node_id for _ in range(20)} == {
        nodes[17].node_id
    }
    for _ in range(3):
        claims.claim(nodes[17], 1000, 0.0, Prompt(8 * STRIDE, 0))
    assert policy.choose(nodes, ask(tokens), None) is not nodes[17]
