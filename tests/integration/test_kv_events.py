"""Subscribers hear batches in order, and get those again that they missed."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine.cache_events import BlocksRemoved, CacheEvent, Medium
from node.kv_events.encoding import EventEncoder
from node.kv_events.publisher import KvEventPublisher, SilentPublisher, event_publisher
from node.kv_events.settings import KvEventsConfig

HERE, ANY = "127.0.0.1", "tcp://127.0.0.1:*"
TOPIC = b"kv@here@model"


def event(number: int) -> CacheEvent:
    return BlocksRemoved((number.to_bytes(16, "big"),))


def numbers_in(batch: bytes) -> list[int]:
    _, events, rank = msgspec.msgpack.decode(batch)
    assert rank == 0
    return [int.from_bytes(key, "big") for one in events for key in one["block_hashes"]]


@asynccontextmanager
async def publishing(
    **settings: str | int,
) -> AsyncIterator[tuple[KvEventPublisher, zmq.asyncio.Socket]]:
    """A publisher that runs, and a subscriber that it knows of."""
    given: dict[str, Any] = {"endpoint": ANY, "topic": TOPIC.decode(), **settings}
    host = "::1" if "::1" in given["endpoint"] else HERE
    config = KvEventsConfig(enable_kv_cache_events=True, **given)
    with (
        event_publisher(config, EventEncoder(16), host, host) as made,
        zmq.asyncio.Context() as zmq_,
    ):
        assert isinstance(made, KvEventPublisher)
        subscriber = zmq_.socket(zmq.SUB)
        subscriber.subscribe(b"")
        subscriber.setsockopt(zmq.IPV6, 1)
        subscriber.connect(str(made.sources["0"]["endpoint"]))
        running = asyncio.create_task(made.run())
        try:
            await known_to(made, subscriber)
            yield made, subscriber
        finally:
            subscriber.close(linger=0)
            running.cancel()


async def known_to(made: KvEventPublisher, subscriber: zmq.asyncio.Socket) -> None:
    """Publish until the subscriber hears it: before, it misses what is published."""
    while not await subscriber.poll(10):
        made.publish([event(0)])
    last, heard = made._published - 1, -1
    while heard != last:
        heard = int.from_bytes((await subscriber.recv_multipart())[1], "big")


async def replayed(made: KvEventPublisher, *request: bytes) -> list[list[bytes]]:
    """All answers to a request, up to the end of the replay."""
    with zmq.asyncio.Context() as zmq_, zmq_.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(str(made.sources["0"]["replay_endpoint"]))
        await dealer.send_multipart(request)
        answers = [await dealer.recv_multipart()]
        while answers[-1][1:] != [b"", b"\xff" * 8, b""]:
            answers.append(await dealer.recv_multipart())
        return answers[:-1]


async def test_batches_are_numbered_and_in_order() -> None:
    async with publishing() as (made, subscriber):
        before = made._published
        for number in range(5):
            made.publish([event(number), event(number)])
        heard = [await subscriber.recv_multipart() for _ in range(5)]
        assert {topic for topic, _, _ in heard} == {TOPIC}
        assert [int.from_bytes(one, "big") for _, one, _ in heard] == [
            *range(before, before + 5)
        ]
        assert [numbers_in(batch) for _, _, batch in heard] == [[one, one] for one in range(5)]


async def test_lower_tiers_can_be_left_out() -> None:
    """For subscribers that take whatever a node stores for KV memory."""
    async with publishing(lower_tiers=False) as (made, subscriber):
        made.publish([BlocksRemoved((bytes(16),), Medium.DISK)])
        made.publish([BlocksRemoved((bytes(16),), Medium.HOST_MEMORY), event(7)])
        _, number, batch = await subscriber.recv_multipart()
        assert int.from_bytes(number, "big") == made._published - 1
        assert numbers_in(batch) == [7]
        assert "lower_tiers" not in made.sources["0"]


async def test_it_can_be_reached_where_it_says(tmp_path: Path) -> None:
    file = f"ipc://{tmp_path}/events"
    async with publishing(endpoint=file) as (made, _):
        assert made.sources["0"]["endpoint"] == file
    async with publishing(endpoint="tcp://[::1]:*") as (made, _):
        assert str(made.sources["0"]["endpoint"]).startswith("tcp://[::1]:")


@pytest.mark.parametrize("endpoint", ["ipc://*", "ipc://events"])
async def test_a_file_is_told_by_its_whole_path(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZMQ chooses one for `*`, in the folder that the node runs in unless TMPDIR is set."""
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.chdir(tmp_path)
    async with publishing(endpoint=endpoint) as (made, _):
        assert str(made.sources["0"]["endpoint"]).startswith(f"ipc://{tmp_path}/")


@pytest.mark.parametrize(
    ("endpoint", "host", "told"),
    [
        ("tcp://*:*", HERE, "node"),
        ("tcp://[::]:*", "::", "node"),
        (ANY, HERE, "node"),
        ("tcp://127.0.0.2:*", HERE, "127.0.0.2"),
    ],
)
def test_a_node_is_told_by_its_name_unless_it_publishes_at_another_address(
    endpoint: str, host: str, told: str
) -> None:
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=endpoint)
    with event_publisher(config, EventEncoder(16), host, "node") as made:
        assert str(made.sources["0"]["endpoint"]).startswith(f"tcp://{told}:")


def test_a_file_is_not_taken_from_who_publishes_there(tmp_path: Path) -> None:
    """As two nodes of one machine with the same settings would; ZMQ itself allows it."""
    file = f"ipc://{tmp_path}/events"
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=file)
    twice = KvEventsConfig(
        enable_kv_cache_events=True, endpoint=f"{file}2", replay_endpoint=f"{file}2"
    )
    with event_publisher(config, EventEncoder(16), HERE, HERE):
        for taken in (config, twice):
            with (
                pytest.raises(OSError, match="cannot be bound: Address already in use"),
                event_publisher(taken, EventEncoder(16), HERE, HERE),
            ):
                pass


def test_a_file_that_was_left_behind_is_used(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{tmp_path}/events")
    file = f"ipc://{tmp_path}/events"
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=file)
    with event_publisher(config, EventEncoder(16), HERE, HERE) as made:
        assert made.sources["0"]["endpoint"] == file


async def test_nothing_is_no_batch() -> None:
    async with publishing() as (made, subscriber):
        before = made._published
        made.publish([])
        made.publish([event(7)])
        _, number, _ = await subscriber.recv_multipart()
        assert int.from_bytes(number, "big") == before


async def test_the_last_batches_can_be_asked_for_again() -> None:
    async with publishing(replay_endpoint=ANY, buffer_steps=200) as (made, _):
        for number in range(300):
            made.publish([event(number)])
        last = made._published - 1
        every = await replayed(made, b"", (0).to_bytes(8, "big"))
        assert [numbers_in(batch) for *_, batch in every] == [[one] for one in range(100, 300)]
        (one,) = await replayed(made, b"", last.to_bytes(8, "big"))
        assert one[:3] == [b"", TOPIC, last.to_bytes(8, "big")]
        assert not await replayed(made, b"", (last + 1).to_bytes(8, "big"))


async def test_a_request_that_is_none_does_not_end_replays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with publishing(replay_endpoint=ANY) as (made, _):
        with zmq.asyncio.Context() as zmq_, zmq_.socket(zmq.DEALER) as dealer:
            dealer.connect(str(made.sources["0"]["replay_endpoint"]))
            for odd in ([b"all"], [b"", b"1"], [b"", b"", b""], [b"x", b"12345678"]):
                await dealer.send_multipart(odd)
        made.publish([event(3)])
        assert (await replayed(made, b"", made._published.to_bytes(8, "big"))) == []
    assert "is none" in caplog.text


async def test_it_connects_to_a_subscriber_that_is_bound() -> None:
    with zmq.asyncio.Context() as zmq_, zmq_.socket(zmq.SUB) as subscriber:
        subscriber.subscribe(TOPIC)
        port = subscriber.bind_to_random_port(f"tcp://{HERE}")
        endpoint = f"tcp://{HERE}:{port}"
        config = KvEventsConfig(
            enable_kv_cache_events=True, endpoint=endpoint, topic=TOPIC.decode()
        )
        with event_publisher(config, EventEncoder(16), HERE, HERE) as made:
            assert isinstance(made, KvEventPublisher)
            assert made.sources["0"]["endpoint"] == endpoint
            await known_to(made, subscriber)


def test_an_endpoint_that_cannot_be_bound_is_named() -> None:
    """That of replays is bound wherever it is, as vLLM's."""
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        for endpoint, again in (
            (f"ipc:///{'a' * 300}", None),
            (ANY, f"tcp://*:{port}"),
            (ANY, f"tcp://{HERE}:{port}"),
            (ANY, "tcp://no.such.host:5558"),
        ):
            config = KvEventsConfig(
                enable_kv_cache_events=True, endpoint=endpoint, replay_endpoint=again
            )
            named = re.escape(f"--kv-events-config: {again or endpoint} cannot be bound")
            with pytest.raises(OSError, match=named):
                KvEventPublisher.open(config, EventEncoder(16), HERE, HERE)


def test_off_is_silent() -> None:
    with event_publisher(KvEventsConfig(), EventEncoder(16), HERE, HERE) as made:
        assert isinstance(made, SilentPublisher)
        assert made.sources == {}
