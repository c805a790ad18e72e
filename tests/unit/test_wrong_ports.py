"""A node whose `--proxy` leads elsewhere stays up, says so, and finds a proxy that comes."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from discovery.reachability import PATIENCE_S, STRANGER
from tests.fakes.waiting import comes_true
from tests.unit.test_heartbeats import HERE, announcing, listening

FIRST_VERSION = b"\x01\x00" + b"\x03\x00hi"  # ZMTP 1.0: a nameless peer, and a message
LONGEST_S = 10


@contextmanager
def another_socket(kind: int) -> Iterator[int]:
    """One of ZMQ's that takes no registrations; yields its port."""
    context = zmq.Context[zmq.Socket[bytes]]()
    other = context.socket(kind)
    try:
        yield other.bind_to_random_port(f"tcp://{HERE}")
    finally:
        other.close(linger=0)
        context.term()


async def test_peers_of_the_first_version_are_refused() -> None:
    """An answer over HTTP reads as that version, in several frames: ZMQ would abort."""
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(FIRST_VERSION)
        await reader.read(-1)
        ended.set()
        writer.close()

    server = await asyncio.start_server(answer, HERE, 0)
    port: int = server.sockets[0].getsockname()[1]
    async with server, listening() as (registry, good), announcing([port, good]):
        await asyncio.wait_for(ended.wait(), LONGEST_S)
        beats = len(registry.beats)
        await registry.until(lambda: len(registry.beats) > beats + 10)


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.PAIR])
async def test_a_port_of_another_kind_is_told_of_and_tried_until_a_proxy_has_it(
    kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (registry, good):
        with another_socket(kind) as port:
            announcer = announcing([port, good])
            reach, _ = (await announcer.__aenter__()).reachabilities
            await comes_true(lambda: reach.stranger)
            beats = len(registry.beats)
            await registry.until(lambda: len(registry.beats) > beats + 10)
        assert reach.away_since is not None
        reach.check(now=reach.away_since + PATIENCE_S)
        assert STRANGER % f"{HERE}:{port}" in caplog.messages
        async with listening(port) as (proxy, _):
            await proxy.until(lambda: proxy.at("h:1"))
        await announcer.__aexit__(None, None, None)
