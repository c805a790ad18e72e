"""Whether a node listens for gRPC, and why it cannot."""

import pytest

from node import grpc_door
from node.config import NodeConfig
from node.grpc_door import NoGrpcDoor, listen_for_grpc

MODEL = "/models/tiny"


async def test_a_node_does_not_listen_unless_told_to() -> None:
    door = listen_for_grpc(NodeConfig(model=MODEL))
    assert isinstance(door, NoGrpcDoor)
    assert door.port is None
    await door.start()
    await door.run()
    await door.stop_taking_calls()
    await door.close()


async def test_a_node_that_is_told_to_listens() -> None:
    door = listen_for_grpc(NodeConfig(model=MODEL, host="127.0.0.1", grpc_port=0))
    assert door.port
    with pytest.raises(OSError, match=f"127.0.0.1:{door.port}"):
        listen_for_grpc(NodeConfig(model=MODEL, host="127.0.0.1", grpc_port=door.port))
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
