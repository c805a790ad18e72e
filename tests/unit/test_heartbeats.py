"""Announcer to listener, over real sockets."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
import zmq

from discovery.announcer import Announcer
from discovery.errors import MalformedAddress
from discovery.intake import Intake
from discovery.listener import Listener
from discovery.reachability import MOST_UNANSWERED, SILENT
from discovery.registration import LONGEST_FRAME, Registration, Role, State
from discovery.signature import sign
from discovery.wordless_connections import WordlessConnections
from tests.fakes.ports import free_ports
from tests.fakes.waiting import comes_true
from tests.fakes.watched import WatchedRegistry

HERE = "127.0.0.1"
KEY = b"key"
BEAT_S = 0.01
BARE = {"type": "D", "http_address": "h:1", "zmq_address": "h:2"}


def prefill() -> Registration:
    return Registration(Role.PREFILL, "h:1", "h:2", "p0", "m", "f")


@asynccontextmanager
async def listening(
    port: int = 0, host: str = HERE, key: bytes | None = None, ttl_s: float = 5
) -> AsyncGenerator[tuple[WatchedRegistry, int]]:
    registry = WatchedRegistry(ttl_s=ttl_s)
    listener = Listener.bind(registry, host, port, cluster_key=key, look_s=BEAT_S)
    task = asyncio.create_task(listener.run())
    try:
        yield registry, listener.port
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()


@asynccontextmanager
async def announcing(
    ports: list[int],
    registration: Callable[[], Registration | None] = prefill,
    host: str = HERE,
    key: bytes | None = None,
) -> AsyncGenerator[Announcer]:
    proxies = [f"{host}:{port}" for port in ports]
    announcer = Announcer.connect(proxies, registration, cluster_key=key, beat_s=BEAT_S)
    task = asyncio.create_task(announcer.run())
    try:
        yield announcer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        announcer.close()


@pytest.fixture
def dealer() -> object:
    context = zmq.Context[zmq.Socket[bytes]]()
    one = context.socket(zmq.DEALER)
    yield one
    one.close(linger=0)
    context.term()


async def test_every_proxy_hears_a_node() -> None:
    async with listening() as (one, a), listening() as (two, b), announcing([a, b]):
        await one.until(lambda: one.at("h:1"))
        await two.until(lambda: two.at("h:1"))
    assert one.beats[0] == prefill()


async def test_proxies_that_are_away_or_that_nobody_knows_disturb_no_other() -> None:
    async with listening() as (registry, port):
        nobody = free_ports(1)[0]
        proxies = ["nobody.invalid:30001", f"{HERE}:{nobody}", f"{HERE}:{port}"]
        announcer = Announcer.connect(proxies, prefill, beat_s=BEAT_S)
        task = asyncio.create_task(announcer.run())
        await registry.until(lambda: len(registry.beats) > 20)
        task.cancel()
        announcer.close()


async def test_an_announcer_looks_which_proxies_it_reaches() -> None:
    (nobody,) = free_ports(1)
    async with listening() as (registry, port), announcing([nobody, port]) as announcer:
        away, there = announcer.reachabilities
        await registry.until(lambda: there.away_since is None)
        assert away.away_since is not None


@pytest.mark.parametrize("host", ["localhost", "::1"])
async def test_names_and_ipv6(host: str) -> None:
    where = f"[{host}]" if ":" in host else host
    async with listening(host=host) as (registry, port), announcing([port], host=where):
        await registry.until(lambda: registry.at("h:1"))


async def test_a_cluster_key_is_on_both_sides() -> None:
    async with (
        listening(key=KEY) as (registry, port),
        announcing([port], lambda: Registration(Role.PREFILL, "h:9", "h:2", "unsigned")),
        announcing([port], key=KEY),
    ):
        await registry.until(lambda: len(registry.beats) > 3)
        assert [node.node_id for node in registry.all()] == ["p0"]


@pytest.mark.parametrize(("theirs", "ours"), [(KEY, b"another"), (KEY, None), (None, KEY)])
async def test_a_node_with_an_unlike_key_is_told_by_nobody_and_says_so(
    theirs: bytes | None, ours: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Strangers hear nothing; who is taken in does, again and again."""
    async with (
        listening(key=theirs) as (registry, port),
        announcing([port], key=ours) as shut_out,
        announcing([port], key=theirs) as let_in,
    ):
        await comes_true(lambda: shut_out.reachabilities[0].logged_silence)
        heard = len(registry.beats)
        await registry.until(lambda: len(registry.beats) > heard + 3 * MOST_UNANSWERED)
        assert shut_out.reachabilities[0].logged_silence
        assert not let_in.reachabilities[0].logged_silence
    told = [one.getMessage() for one in caplog.records if one.name == "discovery.reachability"]
    assert told == [SILENT % (f"{HERE}:{port}", MOST_UNANSWERED)]


async def test_the_load_is_asked_for_each_time() -> None:
    states = [State.READY]

    def registration() -> Registration:
        return Registration(Role.PREFILL, "h:1", "h:2", "p0", state=states[-1])

    async with listening() as (registry, port), announcing([port], registration):
        await registry.until(lambda: registry.nodes(Role.PREFILL, now=0))
        states.append(State.DRAINING)
        await registry.until(lambda: not registry.nodes(Role.PREFILL, now=0))


async def test_draining_can_be_said_at_once() -> None:
    async with listening() as (registry, port):
        announcer = Announcer.connect([f"{HERE}:{port}"], prefill)  # nobody runs it
        announcer.announce_now()
        await registry.until(lambda: registry.beats)
        announcer.close()


async def test_a_node_can_have_nothing_to_say() -> None:
    told = [None, prefill()]
    async with listening() as (registry, port):
        announcer = Announcer.connect([f"{HERE}:{port}"], lambda: told.pop(0))
        announcer.announce_now()
        announcer.announce_now()
        await registry.until(lambda: registry.beats)
        announcer.close()
    assert (len(registry.beats), told) == (1, [])


async def test_a_proxy_that_comes_late_hears_only_the_newest_word() -> None:
    (port,), said = free_ports(1), list[int]()

    def registration() -> Registration:
        said.append(len(said))
        return Registration(Role.PREFILL, "h:1", "h:2", "p0", max_model_len=len(said))

    announcer = Announcer.connect([f"{HERE}:{port}"], registration)
    for _ in range(100):
        announcer.announce_now()
    async with listening(port) as (registry, _):
        await registry.until(lambda: registry.beats)
        announcer.announce_now()
        await registry.until(lambda: len(registry.beats) > 1)
    announcer.close()
    assert [beat.max_model_len for beat in registry.beats] == [100, 101]


async def test_a_proxy_that_comes_back_needs_nothing_special() -> None:
    (port,) = free_ports(1)
    async with announcing([port]):
        for _ in range(2):
            async with listening(port) as (registry, _):
                await registry.until(lambda: registry.at("h:1"))


async def test_silence_is_a_leave_and_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with listening(ttl_s=0.05) as (registry, port):
        async with announcing([port]):
            await registry.until(lambda: registry.at("h:1"))
        await registry.until(lambda: not registry.all())
    told = [record.getMessage() for record in caplog.records if "h:1" in record.getMessage()]
    who = "prefill node h:1 (node_id p0, model m)"
    assert told
    each = [f"{who} joined", f"{who} left: silent"]
    assert told == each * (len(told) // len(each)), "a busy machine is silent now and then"


async def test_garbage_is_logged_once_per_sender_and_nothing_else(
    dealer: zmq.Socket[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as (registry, port):
        dealer.connect(f"tcp://{HERE}:{port}")
        for _ in range(20):
            dealer.send(os.urandom(20))
            dealer.send_multipart([b"a", b"b", b"c"])
            dealer.send(bytes(msgpack.packb({"type": "X"})))
        dealer.send(bytes(msgpack.packb(BARE)))
        await registry.until(lambda: registry.at("h:1"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"dropped a registration from {HERE}: ")


async def test_another_reason_is_told_of_the_same_sender(
    dealer: zmq.Socket[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Who has given a node its key and has a wrong clock yet wants to know."""
    async with listening(key=KEY) as (registry, port):
        dealer.connect(f"tcp://{HERE}:{port}")
        for signed_at in (None, None, 1.0, 1.0):
            said = sign(BARE, KEY, wall_time=signed_at) if signed_at else BARE
            dealer.send(bytes(msgpack.packb(said)))
        await registry.until(lambda: registry.refused.total() == 4)
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["is --cluster-key the same there?", "are both clocks right?"]


class Flood:
    """A socket with a message at any time."""

    def __init__(self) -> None:
        self.left = 1000

    def recv_multipart(self, flags: int, *, copy: bool) -> list[zmq.Frame]:
        assert flags == zmq.NOBLOCK
        assert not copy
        self.left -= 1
        assert self.left, "nobody else had a turn"
        return [zmq.Frame(b"id"), zmq.Frame(bytes(msgpack.packb(BARE)))]

    def getsockopt(self, option: int) -> int:
        return option

    def close(self, *, linger: int) -> None:
        assert linger == 0


async def test_a_flood_of_registrations_leaves_others_their_turn() -> None:
    flood: Any = Flood()
    intake = Intake(WatchedRegistry())
    context = zmq.Context[zmq.Socket[bytes]]()
    endings = WordlessConnections(context.socket(zmq.PAIR))
    listener = Listener(intake, 0, BEAT_S, time.monotonic, context, flood, endings)
    hearing = asyncio.create_task(listener.run())
    for _ in range(10):
        await asyncio.sleep(0)
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
    listener.close()
    assert 0 < flood.left < 1000


async def test_an_oversized_frame_never_gets_in_and_is_counted(
    dealer: zmq.Socket[bytes],
) -> None:
    async with listening() as (registry, port):
        dealer.connect(f"tcp://{HERE}:{port}")
        dealer.send(b"x" * (LONGEST_FRAME + 1))
        async with announcing([port]):
            await registry.until(lambda: registry.at("h:1") and registry.refused)
        assert [node.node_id for node in registry.all()] == ["p0"]
        assert registry.refused == {"oversized": 1}


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with listening() as (_, port):
        with pytest.raises(zmq.ZMQError):
            Listener.bind(WatchedRegistry(), HERE, port)


def test_a_bad_proxy_address_is_an_error() -> None:
    with pytest.raises(MalformedAddress):
        Announcer.connect(["nowhere"], prefill)
