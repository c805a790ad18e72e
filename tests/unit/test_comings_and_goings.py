"""Nodes that come, are replaced, fit nobody, come back or go, as a proxy hears and logs it."""

import asyncio
import logging
from contextlib import closing
from functools import partial

import msgpack
import msgspec
import pytest
import zmq

from discovery.intake import JoinedNode
from discovery.listener import Listener, log_joined
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
        (JoinedNode(Node(ONE, 0), None, None), [f"{WHO} joined"]),
        (
            JoinedNode(Node(TURNED, 0), Node(ONE, 0), None),
            ["prefill node h:1 (node_id d0, model m) has changed its role"],
        ),
        (
            JoinedNode(Node(ONE, 0), Node(BEFORE, 0), None),
            [f"{WHO} replaces decode node h:1 (node_id before, model m)"],
        ),
        (
            JoinedNode(Node(ONE, 0), None, "another dtype"),
            [f"{WHO} joined", f"{WHO} fits nobody: another dtype"],
        ),
    ],
)
def test_who_comes(
    joined: JoinedNode, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    log_joined(joined)
    assert caplog.messages == told


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
