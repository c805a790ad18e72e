"""Nodes that come, are replaced, fit nobody, come back or go, as a proxy hears and logs it."""

import asyncio
import logging
import time
from contextlib import closing
from functools import partial

import msgpack
import msgspec
import pytest
import zmq

from discovery.intake import JoinedNode
from discovery.listener import Listener, log_joined, warn_of_misfits
from discovery.node import Node
from discovery.reachability import MOST_UNANSWERED
from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from tests.fakes.waiting import comes_true
from tests.unit.test_heartbeats import BARE, HERE, announcing, listening

ONE = Registration(Role.DECODE, "h:1", "h:2", "d0", "m", "f")
WHO = "decode node h:1 (node_id d0, model m)"
TURNED = msgspec.structs.replace(ONE, type=Role.PREFILL, turn=1)
BEFORE = msgspec.structs.replace(ONE, node_id="before")


@pytest.mark.parametrize(
    ("joined", "told"),
    [
        (JoinedNode(Node(ONE, 0), None), [f"{WHO} joined"]),
        (
            JoinedNode(Node(TURNED, 0), Node(ONE, 0)),
            ["prefill node h:1 (node_id d0, model m) has changed its role"],
        ),
        (
            JoinedNode(Node(ONE, 0), Node(BEFORE, 0)),
            [f"{WHO} replaces decode node h:1 (node_id before, model m)"],
        ),
    ],
)
def test_who_comes(
    joined: JoinedNode, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log_joined(joined)
    assert caplog.messages == told


def test_whom_another_nodes_coming_or_going_leaves_without_a_partner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A decode node of another connector is none before there is a prefill node."""
    registry = Registry(ttl_s=5.0)
    one = msgspec.structs.replace(ONE, kv_connector="tcp")
    other = msgspec.structs.replace(ONE, http_address="h:4", node_id="d1", kv_connector="nixl")
    prefill = msgspec.structs.replace(
        other, type=Role.PREFILL, http_address="h:5", node_id="p0"
    )

    def heard(*all_of_them: Registration, now: float) -> list[str]:
        for registration in all_of_them:
            registry.apply(registration, now=now)
        registry.expire(now=now)
        caplog.clear()
        warn_of_misfits(registry)
        return caplog.messages

    unlike = "fits nobody: kv_connector is"
    assert heard(one, other, now=0) == []
    assert heard(prefill, now=1) == [f"{WHO} {unlike} tcp here and nixl on h:5"]
    assert heard(one, prefill, other, now=2) == []
    assert heard(one, prefill, now=7) == []
    assert heard(one, prefill, now=8) == [
        f"prefill node h:5 (node_id p0, model m) {unlike} nixl here and tcp on h:1"
    ]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (State.READY, "silent"),
        (State.DRAINING, "it had said that it takes no more work"),
    ],
)
async def test_who_goes(state: State, why: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    registry, now = Registry(ttl_s=5.0), [0.0]
    registry.apply(msgspec.structs.replace(ONE, state=state), now=0)

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    with closing(Listener.bind(registry, "127.0.0.1", 0, look_s=0.0)) as listener:
        listener.clock = clock
        looking = asyncio.create_task(listener.run())
        async with asyncio.timeout(10):
            while registry.all():  # noqa: ASYNC110
                await asyncio.sleep(0)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    assert caplog.messages == [f"{WHO} left: {why}"]


async def test_a_listener_looks_for_whom_nobody_fits(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    registry.apply(msgspec.structs.replace(ONE, kv_connector="tcp"), now=time.monotonic())
    other = msgspec.structs.replace(TURNED, http_address="h:5", node_id="p0")
    registry.apply(msgspec.structs.replace(other, kv_connector="nixl"), now=time.monotonic())
    with closing(Listener.bind(registry, "127.0.0.1", 0, look_s=0.0)) as listener:
        looking = asyncio.create_task(listener.run())
        await comes_true(lambda: len(caplog.messages) == 2)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    assert all("fits nobody" in message for message in caplog.messages)


async def test_who_has_nothing_to_say_does_not_wait_for_an_answer() -> None:
    """Its engine is not healthy: that says nothing of the proxy."""
    asked = asyncio.Semaphore(0)

    def registration() -> None:
        asked.release()

    async with listening() as (_, port), announcing([port], registration) as announcer:
        (proxy,) = announcer.reachabilities
        await comes_true(lambda: proxy.away_since is None)
        for _ in range(2 * MOST_UNANSWERED):
            await asked.acquire()
        assert (proxy.unanswered, proxy.logged_silence) == (0, False)


async def test_a_node_that_keeps_its_name_on_the_wire_is_heard_when_it_comes_back() -> None:
    """As vLLM's do; the proxy may not know yet that the connection before is gone."""
    context = zmq.Context[zmq.Socket[bytes]]()
    async with listening() as (registry, port):
        connections = [context.socket(zmq.DEALER) for _ in range(2)]
        for count, one in enumerate(connections, 1):
            one.setsockopt(zmq.IDENTITY, b"vllm")
            one.connect(f"tcp://{HERE}:{port}")
            one.send(bytes(msgpack.packb({**BARE, "http_address": f"h:{count}"})))
            await registry.until(partial(registry.at, f"h:{count}"))
    context.destroy(linger=0)
