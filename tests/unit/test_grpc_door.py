"""Whether a node listens for gRPC, and why it cannot."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from engine.cache_events import BlocksStored, Medium
from node import grpc_door
from node.config import NodeConfig
from node.grpc_door import NoGrpcDoor, listen_for_grpc
from node.grpc_serving import GrpcNode
from node.kv_events.settings import KvEventsConfig

MODEL = "/models/tiny"


async def test_a_node_does_not_listen_unless_told_to() -> None:
    door = listen_for_grpc(NodeConfig(model=MODEL))
    assert isinstance(door, NoGrpcDoor)
    assert door.port is None
    await door.start()
    await door.run()
    door.publish([])
    await door.stop_taking_calls()
    await door.close()


async def test_a_node_that_is_told_to_listens() -> None:
    door = listen_for_grpc(NodeConfig(model=MODEL, host="127.0.0.1", grpc_port=0))
    assert door.port
    with pytest.raises(OSError, match=f"127.0.0.1:{door.port}"):
        listen_for_grpc(NodeConfig(model=MODEL, host="127.0.0.1", grpc_port=door.port))
    await door.close()


@pytest.mark.parametrize("lower_tiers", [True, False])
async def test_subscribers_are_told_of_lower_tiers_unless_they_want_less(
    *, lower_tiers: bool
) -> None:
    events = KvEventsConfig(enable_kv_cache_events=True, lower_tiers=lower_tiers)
    text = msgspec.json.encode(events).decode()
    config = NodeConfig(
        model=MODEL, host="127.0.0.1", grpc_port=0, block_size=2, kv_events_config=text
    )
    door = listen_for_grpc(config)
    assert isinstance(door, GrpcNode)
    assert door.cache_feed is not None
    kept = BlocksStored((b"1" * 16,), None, (5, 6))
    door.publish([kept, replace(kept, medium=Medium.DISK)])
    batches = door.cache_feed.subscribe(0)
    assert len((await anext(batches)).events) == 1 + lower_tiers
    await door.close()
    async with asyncio.timeout(10):
        assert await anext(batches, None) is None


async def test_unless_events_are_asked_for_none_are_kept() -> None:
    door = listen_for_grpc(NodeConfig(model=MODEL, host="127.0.0.1", grpc_port=0))
    assert isinstance(door, GrpcNode)
    assert door.cache_feed is None
    door.publish([BlocksStored((b"1" * 16,), None, (5, 6))])
    await door.close()


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_door, "NEEDED", ("grpc", "absent_here"))
    with pytest.raises(OSError, match=r"--grpc-port.*pdserve\[grpc\].*absent_here"):
        listen_for_grpc(NodeConfig(model=MODEL, grpc_port=0))
    assert listen_for_grpc(NodeConfig(model=MODEL)).port is None


def test_calls_that_nobody_signs_are_not_let_into_a_cluster_with_a_key() -> None:
    with pytest.raises(ValueError, match="--cluster-key"):
        NodeConfig(model=MODEL, grpc_port=0, cluster_key="k" * 32)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="--grpc-port"):
        NodeConfig(model=MODEL, grpc_port=port)
