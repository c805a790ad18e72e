"""Who was there when last asked, and is not now, is not named; who takes work is not missed."""

from collections.abc import Callable

import msgspec
import pytest

from discovery.registration import Registration, Role, State
from discovery.registry import MOST_REPLACED, MOST_SEEN, Registry

P, D = Role.PREFILL, Role.DECODE
ONE = Registration(P, "h:1", "h:2", "p0", "m", "f", aliases=("alias",))
NEWS = (
    *("joins", "replaced", "role", "drains", "aliases", "adapters", "text"),
    *("removed", "silent", "held", "named"),
)


def node(role: Role, name: str, model: str = "m") -> Registration:
    return Registration(role, f"{name}:1", f"{name}:2", name, model, "f")


def told(registry: Registry, now: float = 0) -> list[str]:
    return [one.node_id for one in registry.nodes(P, now=now)]


def test_who_stops_is_not_named_any_more_beside_who_goes_on() -> None:
    registry = Registry()
    for name in ("p0", "p1"):
        registry.apply(node(P, name), now=0)
    decode = registry.apply(node(D, "d0"), now=0)
    assert decode
    assert told(registry) == ["p0", "p1"]
    registry.apply(msgspec.structs.replace(node(P, "p0"), state=State.DRAINING), now=0)
    assert told(registry) == ["p1"]
    assert [one.node_id for one in registry.partners(decode, now=0)] == ["p1"]


@pytest.mark.parametrize("leaving", ["p0", "p2"])
def test_who_stopped_takes_nobody_along(leaving: str) -> None:
    """It is among those that take work no more, and whoever would stand there stays."""
    registry = Registry()
    for name in ("p1", leaving):
        registry.apply(node(P, name), now=0)
    registry.apply(msgspec.structs.replace(node(P, leaving), state=State.DRAINING), now=0)
    registry.remove(f"{leaving}:1")
    assert told(registry) == ["p1"]


def test_what_was_long_ago_is_forgotten() -> None:
    """Whoever makes up ids and models takes no memory."""
    registry = Registry()
    for i in range(MOST_REPLACED + 2):
        registry.apply(msgspec.structs.replace(ONE, node_id=f"n{i}", model=f"m{i}"), now=i)
    assert registry.last_seen(P, (f"m{i}", "f")) == registry.last_seen(P) == i
    assert registry.last_seen(P, (f"m{i - MOST_SEEN}", "f")) is None
    registry.apply(msgspec.structs.replace(ONE, node_id="n1"), now=i)
    assert told(registry, now=i) == [f"n{i}"]
    registry.apply(msgspec.structs.replace(ONE, node_id="n0"), now=i)
    assert told(registry, now=i) == ["n0"]


def test_who_is_silent_is_not_named_beside_who_is_heard() -> None:
    registry = Registry(ttl_s=3)
    for name, now in (("p0", 0), ("p1", 3)):
        registry.apply(node(P, name), now=now)
    assert told(registry, now=3) == ["p0", "p1"]
    assert told(registry, now=4) == ["p1"]
    registry.apply(node(P, "p0"), now=5)
    assert told(registry, now=5) == ["p0", "p1"]


def test_who_outlives_its_successor_is_heard_again_and_again() -> None:
    registry = Registry(ttl_s=5)
    for name, now in (("before", 0), ("after", 1)):
        registry.apply(msgspec.structs.replace(ONE, node_id=name), now=now)
    registry.expire(now=7)
    for now in (7, 11, 15):
        registry.apply(msgspec.structs.replace(ONE, node_id="before"), now=now)
        assert registry.expire(now=now) == []
    assert told(registry, now=15) == ["before"]


def test_who_has_a_partner_is_told_by_role_model_and_who_is_left_out() -> None:
    registry, at = Registry(ttl_s=3), {"p0": 0, "d0": 0, "d1": 3, "other": 3}
    for name, now in at.items():
        role, model = P if name == "p0" else D, "other" if name == "other" else "m"
        registry.apply(node(role, name, model), now=now)
    (prefill,) = registry.nodes(P, now=3)

    def paired(role: Role, now: float, **rest: object) -> list[str]:
        found = registry.paired(role, now=now, **rest)  # type: ignore[arg-type]
        return [one.node_id for one in found]

    assert paired(D, 3) == paired(D, 3, model=("m", "f")) == ["d0", "d1"]
    assert paired(D, 3, model=("other", "f")) == []
    assert paired(P, 3) == ["p0"]
    assert paired(D, 3, but=frozenset({prefill})) == []
    assert paired(D, 4) == [], "its only partner is silent"
    registry.apply(node(P, "p1"), now=4)
    assert paired(D, 4, but=frozenset({prefill})) == ["d1"]


@pytest.mark.parametrize(
    "news",
    [
        lambda it: it.apply(node(D, "d0"), now=1),
        lambda it: it.apply(msgspec.structs.replace(ONE, node_id="p1"), now=1),
        lambda it: it.apply(msgspec.structs.replace(ONE, type=D, turn=1), now=1),
        lambda it: it.apply(msgspec.structs.replace(ONE, state=State.DRAINING), now=1),
        lambda it: it.apply(msgspec.structs.replace(ONE, aliases=()), now=1),
        lambda it: it.apply(msgspec.structs.replace(ONE, adapters=("law",)), now=1),
        lambda it: it.apply(msgspec.structs.replace(ONE, text_digest="0" * 64), now=1),
        lambda it: it.remove("h:1"),
        lambda it: it.expire(now=99),
        lambda it: it.hold("h:1"),
        lambda it: it.name("h:1", "m", None),
    ],
    ids=NEWS,
)
def test_news_of_who_serves_what_is_seen(news: Callable[[Registry], object]) -> None:
    """Or lists of models, and other workers, would keep what was."""
    registry = Registry()
    registry.apply(ONE, now=0)
    before = registry.changes
    news(registry)
    assert registry.changes > before
    settled = registry.changes
    registry.expire(now=1)
    assert registry.changes == settled


def test_a_model_that_a_node_does_not_tell_is_set_for_it() -> None:
    registry, bare = Registry(), Registration(P, "h:1", "h:2")
    nameless = registry.apply(bare, now=0)
    assert nameless
    assert registry.is_nameless(nameless)
    registry.name("h:1", "m", 512)
    for now in (0, 1):
        (one,) = registry.nodes(P, now=now, model=("m", None))
        assert (one.registration.model, one.registration.max_model_len) == ("m", 512)
        assert registry.is_nameless(one)
        registry.apply(bare, now=1)
    before = registry.changes
    registry.name("h:1", "m", 512)
    assert registry.changes == before
    registry.apply(msgspec.structs.replace(bare, model="own", max_model_len=9), now=2)
    (one,) = registry.nodes(P, now=2)
    assert (one.registration.model, one.registration.max_model_len) == ("own", 9)
    own = registry.apply(node(P, "p9"), now=2)
    assert own
    assert not registry.is_nameless(own)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_a_node_that_is_added_by_hand_stays_so_whatever_it_registers(
    order: tuple[bool, bool],
) -> None:
    """It is probed: whoever removes it by hand counts on that."""
    registry = Registry()
    for static in order:
        registry.apply(ONE, now=0, static=static)
    known = registry.at("h:1")
    assert known
    assert known.static


def test_whoever_could_not_be_heard_was_last_seen_just_now() -> None:
    registry = Registry()
    registry.apply(ONE, now=0)
    registry.mark_all_heard(now=60)
    assert registry.last_seen(P) == registry.last_seen(P, ("m", "f")) == 60


def test_when_a_role_was_last_seen_goes_never_back() -> None:
    registry = Registry()
    for name, now in (("p0", 1), ("p1", 5)):
        registry.apply(node(P, name), now=now)
    registry.hold("p0:1")
    assert registry.last_seen(P) == registry.last_seen(P, ("m", "f")) == 5


def test_models_that_nobody_serves_any_more_take_no_memory() -> None:
    registry = Registry()
    for number in range(3):
        registry.apply(node(P, "p0", f"m{number}"), now=number)
    assert set(registry._ready) == {(P, ("m2", "f")), (P, None)}
