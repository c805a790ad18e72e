"""A worker forgets nodes that are silent, and none for the silence of its parent."""

from discovery.registration import EXPIRY_S, Registration, Role
from discovery.registry import Registry
from proxy.workers.process import HUB_SILENT_S, NodeExpiry


def heard(registry: Registry, address: str, now: float) -> None:
    registry.apply(Registration(Role.DECODE, address, "h:1", address), now=now)


def living(registry: Registry, now: float) -> list[str]:
    return [one.node_id for one in registry.nodes(Role.DECODE, now=now)]


def test_who_is_silent_while_the_parent_speaks_is_forgotten() -> None:
    registry = Registry()
    expiry = NodeExpiry(registry)
    heard(registry, "d:0", 0.0)
    heard(registry, "d:1", 4.0)
    expiry.tick(hub_heard_at=5.5, now=EXPIRY_S + 1)
    assert living(registry, EXPIRY_S + 1) == ["d:1"]
    assert len(registry) == 1


def test_while_the_parent_is_silent_nobody_is_and_all_is_as_before_when_it_speaks() -> None:
    registry = Registry()
    expiry, now = NodeExpiry(registry), 0.0
    heard(registry, "d:0", 0.0)
    heard(registry, "d:1", 0.0)
    while now < 10 * EXPIRY_S:
        now += 1.0
        expiry.tick(hub_heard_at=0.0, now=now)
        assert living(registry, now) == ["d:0", "d:1"]
    heard(registry, "d:1", now)
    expiry.tick(hub_heard_at=now, now=now)
    for _ in range(round(EXPIRY_S) + 1):
        now += 1.0
        heard(registry, "d:1", now)
        expiry.tick(hub_heard_at=now, now=now)
    assert living(registry, now) == ["d:1"]


def test_it_is_seen_before_any_node_would_be_forgotten() -> None:
    assert EXPIRY_S > HUB_SILENT_S + 1.0
