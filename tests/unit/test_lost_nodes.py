"""A node that is lost is told from one that left, however short a time it said so."""

import time

from prometheus_client.parser import text_string_to_metric_families

from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from proxy.health.health import Health
from proxy.observing.metrics import ProxyMetrics

PATIENCE_S = 60
NAME = "pdserve_proxy_last_node_lost_timestamp_seconds"


def lost(metrics: ProxyMetrics) -> dict[str, float]:
    """What the page says, by role."""
    families = text_string_to_metric_families(metrics.render().decode())
    (family,) = (one for one in families if one.name == NAME)
    return {one.labels["role"]: one.value for one in family.samples}


def test_the_time_of_a_loss_is_on_the_page() -> None:
    registry, since = Registry(ttl_s=3), time.monotonic()
    metrics = ProxyMetrics(registry, Health(registry))
    assert lost(metrics) == {"prefill": 0, "decode": 0}
    for role, state in ((Role.PREFILL, State.DRAINING), (Role.DECODE, State.READY)):
        registry.apply(Registration(role, f"{role}:1", f"{role}:2", state=state), now=since)
    registry.expire(now=since + 4)
    said, now = lost(metrics), time.time()
    assert said["prefill"] == 0
    assert abs(said["decode"] - now) < PATIENCE_S  # Unix time, though the registry's is not
    assert len(registry) == 0


def test_who_changes_its_role_is_not_lost() -> None:
    registry = Registry(ttl_s=3)
    for turn, role in enumerate((Role.PREFILL, Role.DECODE)):
        registry.apply(Registration(role, "n:1", "n:2", "n", turn=turn), now=turn)
    registry.expire(now=2)
    assert [node.role for node in registry.all()] == [Role.DECODE]
    assert registry.losses.last == {}
