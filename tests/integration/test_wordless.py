"""What ZMQ refuses before there is a message, over real sockets: counted, and nodes are not."""

import asyncio
import os
import random
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass

import pytest
import zmq
from prometheus_client import generate_latest

from discovery.listener import LARGEST_READ, MOST_AT_ONCE, Listener
from discovery.registration import Registration, Role, pack, to_map
from discovery.registry import Registry
from proxy.health.health import Health
from proxy.observing.metrics import ProxyMetrics
from tests.fakes.waiting import PATIENCE_S, comes_true

HERE, SOON_S, LONG_S = "127.0.0.1", 1.0, 600.0
GOOD = pack(to_map(Registration(Role.DECODE, "h:1", "h:2", "d0")))
MEBIBYTE = 1 << 20
UNREAD = 2000  # endings that ZMQ keeps
FULL_S = 2.0
SOONER_S = 20.0  # than ZMQ does by itself


@dataclass
class Ear:
    """A listener that runs."""

    registry: Registry
    port: int

    async def counts(self, wordless: int) -> None:
        """No more and no less, nor anything else."""
        await comes_true(lambda: self.registry.refused["wordless"] >= wordless)
        assert self.registry.refused == {"wordless": wordless}

    async def hears_a_node(self) -> None:
        before = self.heard_at()
        with speaking(self.port) as node:
            node.send(GOOD)
            await comes_true(lambda: self.heard_at() > before)

    def heard_at(self) -> float:
        node = self.registry.at("h:1")
        return node.heard_at if node else 0.0

    def stranger(self) -> socket.socket:
        return socket.create_connection((HERE, self.port), timeout=PATIENCE_S)


@asynccontextmanager
async def listening(handshake_s: float = LONG_S) -> AsyncGenerator[Ear]:
    registry = Registry(ttl_s=LONG_S)
    with closing(Listener.bind(registry, HERE, 0, handshake_s=handshake_s)) as listener:
        running = asyncio.create_task(listener.run())
        try:
            yield Ear(registry, listener.port)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@contextmanager
def speaking(port: int, kind: int = zmq.DEALER) -> Iterator[zmq.Socket[bytes]]:
    """A socket as a node has it, that does not come again when it is cut off."""
    context = zmq.Context[zmq.Socket[bytes]]()
    with context.socket(kind) as one:
        one.setsockopt(zmq.LINGER, 0)
        one.setsockopt(zmq.RECONNECT_IVL, -1)
        one.connect(f"tcp://{HERE}:{port}")
        yield one
    context.term()


def greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


RAW: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(MEBIBYTE),
    "ones": b"\xff" * MEBIBYTE,
    "a sequence": bytes(range(256)) * (MEBIBYTE // 256),
    "HTTP": b"GET / HTTP/1.1\r\nHost: pdserve\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "another mechanism": greeting(b"NONSENSE"),
    "a greeting": greeting(b"NULL"),
    "half a greeting": greeting(b"NULL")[:30],
    "a handshake of a tebibyte": greeting(b"NULL") + b"\x06" + (1 << 40).to_bytes(8),
}


@pytest.mark.parametrize("what", RAW)
async def test_who_does_not_speak_zmq_is_counted_and_hinders_nobody(what: str) -> None:
    async with listening() as ear:
        with ear.stranger() as stranger, suppress(ConnectionError):  # cut off meanwhile
            stranger.sendall(RAW[what])
        await ear.counts(wordless=1)
        await ear.hears_a_node()
        page = generate_latest(ProxyMetrics(ear.registry, Health(ear.registry)).all).decode()
        assert 'registrations_refused_total{reason="wordless"} 1.0' in page


@pytest.mark.parametrize("seed", range(4))
async def test_a_mebibyte_of_noise_is_counted(seed: int) -> None:
    """Some of it passes for messages of ZMQ's first version, which are refused each."""
    async with listening() as ear:
        with ear.stranger() as stranger, suppress(ConnectionError):
            stranger.sendall(random.Random(seed).randbytes(MEBIBYTE))
        await comes_true(lambda: ear.registry.refused["wordless"])
        assert ear.registry.refused["wordless"] == 1
        assert set(ear.registry.refused) <= {"wordless", "malformed"}
        await ear.hears_a_node()
        assert len(ear.registry) == 1


async def test_too_long_a_message_after_a_good_handshake_is_counted() -> None:
    async with listening() as ear:
        with speaking(ear.port) as node:
            node.send(bytes(LARGEST_READ + 1))
            await ear.counts(wordless=1)
        await ear.hears_a_node()


async def test_a_socket_of_a_kind_that_does_not_fit_is_counted() -> None:
    async with listening() as ear:
        with speaking(ear.port, zmq.PUB):
            await ear.counts(wordless=1)


@pytest.mark.parametrize("what", ["nothing", "half a greeting", "a greeting"])
async def test_a_handshake_that_never_ends_is_ended_and_counted(what: str) -> None:
    async with listening(handshake_s=SOON_S) as ear:
        with ear.stranger() as stranger:
            stranger.sendall(RAW[what])
            async with asyncio.timeout(SOONER_S):
                await ear.counts(wordless=1)
            await asyncio.to_thread(read_to_end, stranger)
        await ear.hears_a_node()


async def test_nodes_that_come_and_leave_count_nothing() -> None:
    """Endings are told in their order: the stranger's is the last."""
    async with listening() as ear:
        for _ in range(20):
            await ear.hears_a_node()
        assert not ear.registry.refused
        ear.stranger().close()
        await ear.counts(wordless=1)


async def test_nodes_that_leave_at_once_were_heard_nevertheless() -> None:
    """Messages and endings wait together, more than are read at once."""
    async with listening() as ear:
        context = zmq.Context[zmq.Socket[bytes]]()
        for _ in range(2 * MOST_AT_ONCE):
            with context.socket(zmq.DEALER) as node:
                node.connect(f"tcp://{HERE}:{ear.port}")
                node.send(GOOD)
        context.term()  # when all is sent; the listener had no turn yet
        await comes_true(ear.heard_at)
        ear.stranger().close()
        await ear.counts(wordless=1)


async def test_it_is_told_once_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as ear:
        for count in (1, 2, 3):
            ear.stranger().close()
            await ear.counts(wordless=count)
    assert sum("before a message came" in line for line in caplog.messages) == 1


async def test_a_storm_that_nobody_hears_takes_no_memory_and_is_counted_then() -> None:
    """ZMQ keeps so many endings, and lets nobody in until they are read."""
    with closing(Listener.bind(registry := Registry(), HERE, 0)) as listener:
        storm(listener.port)
        running = asyncio.create_task(listener.run())
        await comes_true(lambda: registry.refused["wordless"] > UNREAD)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert registry.refused == {"wordless": UNREAD + 1}


def test_it_closes_in_the_middle_of_a_storm_and_leaves_nothing_open() -> None:
    before = ours()
    listener = Listener.bind(Registry(), HERE, 0)
    storm(listener.port)
    listener.close()
    files, threads = ours()
    assert files <= before[0]
    assert threads <= before[1]


def ours() -> tuple[int, int]:
    """Files and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def storm(port: int) -> None:
    """One after the other is cut off, until ZMQ has no room to tell it."""
    for count in range(2 * UNREAD):
        with socket.create_connection((HERE, port), timeout=FULL_S) as stranger:
            stranger.sendall(greeting(b"NONSENSE"))
            try:
                read_to_end(stranger)
            except TimeoutError:
                assert count == UNREAD
                return
    raise AssertionError("everybody was let in")


def read_to_end(stranger: socket.socket) -> None:
    with suppress(ConnectionError):
        while stranger.recv(MEBIBYTE):
            pass
