"""Cache events on the wire are vLLM's, field by field, in both of its encodings."""

import re
from typing import Any

import msgspec
import pytest

from deploy.config import UpConfig
from engine.cache_events import BlocksRemoved, BlocksStored, CacheEvent, Medium
from node.config import NodeConfig
from node.kv_events.encoding import EventEncoder
from node.kv_events.settings import KvEventsConfig, is_bound, read_kv_events_config

KEY, NEXT, TOKENS = b"a" * 16, b"b" * 16, tuple(range(16))
STORED = {
    "type": "BlockStored",
    "block_hashes": [KEY],
    "parent_block_hash": None,
    "token_ids": list(TOKENS),
    "block_size": 16,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "group_idx": 0,
}


def decoded(encoder: EventEncoder, *events: CacheEvent) -> Any:  # noqa: ANN401
    return msgspec.msgpack.decode(encoder.encode(1.5, events))


def test_a_map_has_vllms_fields() -> None:
    """A subscriber refuses fields that it does not know, and wants those that are null."""
    found = decoded(EventEncoder(16), BlocksStored((KEY,), None, TOKENS), BlocksRemoved((KEY,)))
    removed = {"type": "BlockRemoved", "block_hashes": [KEY], "medium": "GPU", "group_idx": 0}
    assert found == [1.5, [STORED, removed], 0]


@pytest.mark.parametrize(
    ("medium", "name"),
    [(Medium.KV_MEMORY, "GPU"), (Medium.HOST_MEMORY, "CPU"), (Medium.DISK, "STORAGE")],
)
def test_each_tier_has_vllms_name(medium: Medium, name: str) -> None:
    events = BlocksStored((KEY,), None, TOKENS, medium=medium), BlocksRemoved((KEY,), medium)
    _, (stored, removed), _ = decoded(EventEncoder(16), *events)
    assert stored == {**STORED, "medium": name}
    assert removed["medium"] == name


def test_an_array_has_them_in_vllms_order() -> None:
    stored = BlocksStored((KEY,), None, TOKENS)
    found = decoded(EventEncoder(16, (), as_arrays=True), stored, BlocksRemoved((KEY, NEXT)))
    first = ["BlockStored", [KEY], None, [*TOKENS], 16, None, "GPU", None, None, 0]
    assert found == [1.5, [first, ["BlockRemoved", [KEY, NEXT], "GPU", 0]], 0]


@pytest.mark.parametrize(
    ("parent", "adapter", "salt", "extra"),
    [
        (None, None, "", None),
        (None, "law", "", [["law"], ["law"]]),
        (None, None, "s", [["s"], None]),
        (None, "law", "s", [["law", "s"], ["law"]]),
        (KEY, "law", "s", [["law"], ["law"]]),
        (KEY, None, "s", None),
    ],
)
def test_what_else_is_hashed_is_told(
    parent: bytes | None, adapter: str | None, salt: str, extra: object
) -> None:
    event = BlocksStored((KEY, NEXT), parent, (*TOKENS, *TOKENS), adapter, salt)
    _, (told,), _ = decoded(EventEncoder(16, ("sql", "law")), event)
    assert told.get("extra_keys") == extra
    assert ("extra_keys" in told) is (extra is not None)
    lora = (None, None) if adapter is None else (2, "law")
    assert (told["lora_id"], told["lora_name"]) == lora


def test_what_vllm_writes_is_understood() -> None:
    text = (
        '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557",'
        ' "replay_endpoint": "tcp://*:5558", "buffer_steps": 100, "hwm": 7,'
        ' "max_queue_size": 9, "topic": "kv-events"}'
    )
    config = read_kv_events_config(text)
    assert (config.on, config.topic, config.buffer_steps, config.hwm) == (
        True,
        "kv-events",
        100,
        7,
    )
    assert NodeConfig(model="m", kv_events_config=text).kv_cache_events


@pytest.mark.parametrize(
    "text",
    [None, "{}", '{"topic": "t"}', '{"enable_kv_cache_events": true, "publisher": "null"}'],
)
def test_nothing_is_published_unless_it_is_asked_for(text: str | None) -> None:
    assert not NodeConfig(model="m", kv_events_config=text).kv_cache_events


@pytest.mark.parametrize(
    ("endpoint", "bound"),
    [
        ("tcp://*:5557", True),
        ("tcp://127.0.0.1:*", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/events", True),
        ("tcp://router:5557", False),
    ],
)
def test_an_endpoint_is_bound_or_connected_to_as_vllms(endpoint: str, bound: bool) -> None:
    assert is_bound(endpoint) is bound
    assert KvEventsConfig(endpoint=endpoint).endpoint == endpoint


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "must not be empty"),
        ("on", "--kv-events-config"),
        ('{"enable": true}', "enable"),
        ('{"publisher": "kafka"}', "publisher"),
        ('{"encoding": "json"}', "encoding"),
        ('{"endpoint": "127.0.0.1:5557"}', "begins with neither"),
        ('{"endpoint": "inproc://a"}', "begins with neither"),
        ('{"buffer_steps": 0}', "buffer_steps"),
        ('{"hwm": -1}', "hwm"),
        ('{"hwm": 2147483648}', "hwm"),
        ('{"buffer_steps": 2147483647}', "buffer_steps"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(
    text: str, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        NodeConfig(model="m", kv_events_config=text)


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ('{"enable_kv_cache_events": true}', "tcp://*:5557"),
        ('{"enable_kv_cache_events": true, "endpoint": "ipc:///tmp/a"}', "ipc:///tmp/a"),
        (
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:*",'
            ' "replay_endpoint": "tcp://*:1"}',
            "tcp://*:1",
        ),
        (
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:*",'
            ' "replay_endpoint": "tcp://127.0.0.1:1"}',
            "tcp://127.0.0.1:1",
        ),
        ('{"enable_kv_cache_events": true, "endpoint": "tcp://*:*"}', None),
        ('{"enable_kv_cache_events": true, "endpoint": "tcp://router:5557"}', None),
        ('{"endpoint": "tcp://*:5557"}', None),
    ],
)
def test_nodes_of_one_machine_share_no_port(text: str, shared: str | None) -> None:
    UpConfig(prefill=1, decode=0, kv_events_config=text)
    if shared is None:
        UpConfig(kv_events_config=text)
        return
    with pytest.raises(ValueError, match=re.escape(f"2 nodes cannot share {shared};")):
        UpConfig(kv_events_config=text)


def test_events_of_a_prefix_cache_that_is_off_are_refused() -> None:
    text = '{"enable_kv_cache_events": true}'
    with pytest.raises(ValueError, match="--kv-events-config goes with"):
        NodeConfig(model="m", kv_events_config=text, enable_prefix_caching=False)
