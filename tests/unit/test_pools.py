"""Which models there are, by the names that nodes say, and who of one name gets a request."""

from collections import Counter

import pytest

from discovery.node import Node
from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from proxy.health.health import Health
from proxy.models.model_pools import (
    ConfiguredNames,
    ModelPool,
    capacity,
    model_pools,
    pick_model,
)

P, D = Role.PREFILL, Role.DECODE
NOBODYS = ConfiguredNames(frozenset(), ("model",))
ONE, TWO = "1" * 64, "2" * 64


def node(
    role: Role = D, model: str | None = "m", fingerprint: str | None = "f", **more: object
) -> Node:
    name = f"{role.lower()}{more.pop('number', 0)}:80"
    said = Registration(role, name, "h:0", name, model, fingerprint, **more)  # type: ignore[arg-type]
    return Node(said, 0.0)


def test_nodes_of_equal_name_and_fingerprint_are_one_model() -> None:
    nodes = [node(), node(P), node(model="n"), node(fingerprint="g")]
    found = model_pools(nodes, NOBODYS)
    assert list(found) == [("m", "f"), ("m", "g"), ("n", "f")]
    assert found["m", "f"].names == ("m",)


def test_a_model_goes_by_all_names_that_its_nodes_say() -> None:
    found = model_pools([node(aliases=("b", "a")), node(P, aliases=("a", "c"))], NOBODYS)
    assert found["m", "f"].names == ("m", "b", "a", "c")


def test_who_drains_serves_nothing_new() -> None:
    assert not model_pools([node(state=State.DRAINING)], NOBODYS)


def test_most_nodes_decide_what_text_is_made_with() -> None:
    nodes = [node(text_digest=TWO), node(text_digest=ONE), node(text_digest=TWO), node()]
    assert model_pools(nodes, NOBODYS)["m", "f"].digests == (TWO, ONE)


def test_the_settings_names_win_for_the_model_that_they_name() -> None:
    own = ConfiguredNames(frozenset({"told", "/folder"}), ("told",))
    found = model_pools([node(model="/folder", aliases=("x",)), node(model="n")], own)
    assert (found["/folder", "f"].names, found["/folder", "f"].own) == (("told",), True)
    assert (found["n", "f"].names, found["n", "f"].own) == (("n",), False)


def test_who_does_not_say_what_it_serves_is_believed() -> None:
    foreign = Node(Registration(D, "v:1", "v:2"), 0.0)
    key = (None, None)
    assert model_pools([foreign], NOBODYS)[key] == ModelPool(
        key, ("model",), (), own=True, foreign=True
    )


def test_requests_are_shared_by_weight_and_stay_where_they_were() -> None:
    old, new = ("m", "f"), ("m", "g")
    ids = [f"request-{number}" for number in range(2000)]
    before = {one: pick_model(one, [(old, 3), (new, 1)]) for one in ids}
    counts = Counter(before.values())
    assert 430 < counts[new] < 570
    after = {one: pick_model(one, [(old, 2), (new, 2)]) for one in ids}
    moved = [one for one in ids if before[one] != after[one]]
    assert {after[one] for one in moved} == {new}
    assert 930 < Counter(after.values())[new] < 1070


@pytest.mark.parametrize(
    ("roles", "generates", "expected"),
    [
        ([], True, (0, 0)),
        ([P], True, (0, 0)),
        ([D, D], True, (1, 2)),
        ([P, D], True, (2, 1)),
        ([P, P], False, (2, 2)),
        ([D], False, (1, 1)),
        ([], False, (0, 0)),
    ],
)
def test_what_a_pool_can_do(
    roles: list[Role], generates: bool, expected: tuple[int, int]
) -> None:
    registry = Registry()
    for number, role in enumerate(roles):
        registry.apply(node(role, number=number).registration, now=0)
    assert (
        capacity(registry, Health(registry), ("m", "f"), now=0, generates=generates) == expected
    )
