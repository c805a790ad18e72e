"""What a node says of its own health: that of its engine process."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from quart import Quart

from discovery.registration import Registration, Role
from kv_transfer.layout import KvLayout
from node.door import Door
from node.engine_client import QUIET_S, EngineClient
from node.ipc import NO_LOAD, Ready
from node.legs import LegFinder
from node.metrics import NodeMetrics

READY = Ready("f", KvLayout("bytes", 1, 1, (4,)), 512, 21001, NO_LOAD)


@pytest.mark.parametrize(
    ("ended_with", "silent_s", "status"),
    [(None, 0.0, 200), (None, QUIET_S + 1, 503), (-9, 0.0, 503)],
)
async def test_health_is_that_of_the_engine_process(
    ended_with: int | None, silent_s: float, status: int
) -> None:
    process: Any = SimpleNamespace(returncode=ended_with)
    socket: Any = None
    heard_at = time.monotonic() - silent_s
    engine = EngineClient(process, socket, READY, heard_at=heard_at)
    app, here = Quart("node"), Registration(Role.DECODE, "h:1", "h:2")
    door = Door(engine, NodeMetrics(), lambda: here, LegFinder("h:2"))
    app.register_blueprint(door.blueprint())
    assert (await app.test_client().get("/health")).status_code == status
