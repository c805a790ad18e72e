"""Settings of tiers that cannot be meant, and what a node tells of its tiers."""

import math

import pytest

from engine.api import EngineLoad, TierLoad
from node.config import NodeConfig
from node.ipc import EngineOutputs, decode_from_engine, encode
from node.metrics import NodeMetrics

TIERS = (TierLoad("cpu", 100, 3, 7, 5, 2), TierLoad("disk", 100, 0, 4, 1, 2, on=False))


@pytest.mark.parametrize("size", [0.0, -1.0, 1e308, math.inf, math.nan])
@pytest.mark.parametrize("name", ["kv_offloading_size", "kv_disk_size"])
def test_a_size_that_is_none_is_refused_by_its_flag(name: str, size: float) -> None:
    with pytest.raises(ValueError, match="--" + name.replace("_", "-")):
        NodeConfig(model="m", **{name: size})  # type: ignore[arg-type]


def test_tiers_without_a_prefix_cache_are_refused() -> None:
    with pytest.raises(ValueError, match="--kv-disk-path"):
        NodeConfig(model="m", kv_disk_path="/kv", enable_prefix_caching=False)
    with pytest.raises(ValueError, match="--kv-offloading-size"):
        NodeConfig(model="m", kv_offloading_size=1.0, enable_prefix_caching=False)


def test_the_door_counts_what_the_engine_says_of_its_tiers() -> None:
    news = decode_from_engine(encode(EngineOutputs([], EngineLoad(0, 0, 0, 0, tiers=TIERS))))
    assert isinstance(news, EngineOutputs)
    metrics = NodeMetrics()
    metrics.record(news)

    def told(name: str, tier: str) -> float | None:
        return metrics.registry.get_sample_value(f"pdserve_kv_tier_{name}", {"tier": tier})

    names = "on", "blocks", "stored_total", "loaded_total", "missed_total"
    assert [told(name, "cpu") for name in names] == [1, 3, 7, 5, 2]
    assert [told(name, "disk") for name in names] == [0, 0, 4, 1, 2]
    assert told("stored_bytes_total", "cpu") == 700
    assert told("loaded_bytes_total", "disk") == 100
