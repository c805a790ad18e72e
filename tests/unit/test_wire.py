"""Whatever comes in on the side channel and the data port, the transfer thread goes on."""

import select
import socket
from collections.abc import Callable

import msgspec
import pytest

from kv_transfer.api import Sealed
from kv_transfer.layout import KvLayout
from kv_transfer.movers.tcp import TcpMover
from kv_transfer.movers.tcp_requests import LENGTH_BYTES
from kv_transfer.regions import RemoteRegion
from kv_transfer.ticket import LONGEST_NAME
from kv_transfer.wire import (
    Abandon,
    Leave,
    Look,
    News,
    Settle,
    TurnedAway,
    Welcome,
    decode_from_sink,
    decode_from_source,
    encode,
)

HERE = "127.0.0.1"
NESTED = b"\x91" * 5_000 + b"\xc0"
ENDLESS = b"\x91" * 200_000 + b"\xc0"  # Python 3.13 follows thousands
SENSELESS = [
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    encode(Settle("key", "name")).replace(b"name", b"nam\xff"),  # no UTF-8
    b"\x83\xa4type\xa6Settle\xa3key\xa1k\xa1x" + ENDLESS,
    b"\x82\xa4type\xa8Confirme\xff\xa3key\xa1k",
]


@pytest.mark.parametrize("frame", SENSELESS)
@pytest.mark.parametrize("decode", [decode_from_sink, decode_from_source])
def test_a_frame_without_sense_has_one_kind_of_error(
    decode: Callable[[bytes], object], frame: bytes
) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(frame)


@pytest.mark.parametrize("block", [-1, 1 << 31, (1 << 64) - 1])
def test_a_number_that_no_block_has_is_no_news(block: int) -> None:
    """Arithmetic with it would overflow, in the thread that keeps leases alive."""
    with pytest.raises(msgspec.DecodeError):
        decode_from_source(encode(News("key", 0, (block,))))


@pytest.mark.parametrize("key", ["k" * (2 * LONGEST_NAME), "k"])
@pytest.mark.parametrize("kind", [Look, Settle, Abandon, Leave])
def test_what_a_sink_says_of_a_pull_is_bounded(kind: type[msgspec.Struct], key: str) -> None:
    """Thousands of keys are remembered; no pull has a number below 0."""
    given = {"key": key, "engine_id": None, "known": 0, "pull": 0}
    fields = {name: given[name] for name in kind.__struct_fields__ if name in given}
    message = kind(**fields)
    assert decode_from_sink(msgspec.msgpack.encode(message)) == message
    for wrong in ({"key": key + "k" * (2 * LONGEST_NAME)}, {"pull": -1}):
        with pytest.raises(msgspec.DecodeError):
            decode_from_sink(msgspec.msgpack.encode(msgspec.structs.replace(message, **wrong)))


def test_less_than_no_cached_tokens_are_no_news() -> None:
    """A counter cannot be set back: it ended the node."""
    sealed = Sealed(4, 1, cached_tokens=-1)
    with pytest.raises(msgspec.DecodeError):
        decode_from_source(encode(News("key", 0, (1,), sealed=sealed)))


@pytest.mark.parametrize(
    "region",
    [
        RemoteRegion(-1, 64, 8, "cpu"),
        RemoteRegion(1 << 63, 64, 8, "cpu"),
        RemoteRegion(1, 0, 8, "cpu"),
        RemoteRegion(1, 1 << 62, 8, "cpu"),
        RemoteRegion(1, 64, 0, "cpu"),
        RemoteRegion(1, 64, 1 << 31, "cpu"),
        RemoteRegion(1, 64, 8, "cuda:x"),
        RemoteRegion(1, 64, 8, "cpu\n"),
    ],
)
def test_memory_that_there_cannot_be_is_no_welcome(region: RemoteRegion) -> None:
    """NIXL's lists are made of these numbers, in the same thread."""
    layout = KvLayout("bytes", 1, 1, (64,))
    said = Welcome("engine", "same", layout, (region,), (b"card",), "machine")
    with pytest.raises(msgspec.DecodeError):
        decode_from_source(encode(said))
    right = RemoteRegion(1, 64, 8, "cuda:1")
    told = msgspec.structs.replace(said, regions=(right,))
    assert decode_from_source(encode(told)) == told


@pytest.mark.parametrize("request_", [b"\xff", b"\x92\x90" + NESTED])
def test_a_request_without_sense_ends_its_connection_only(request_: bytes) -> None:
    mover = TcpMover.start(HERE, HERE, [])
    listener = mover.serving.listener
    with socket.create_connection(listener.getsockname()) as guest:
        framed = len(request_).to_bytes(LENGTH_BYTES, "big") + request_
        guest.sendall(mover.serving.secret + framed)
        select.select([listener], [], [], 5.0)
        mover.poll()
        assert list(mover.interests) == [listener.fileno()]
        assert guest.recv(1) == b""
    mover.close()


def test_why_somebody_turned_us_away_may_be_logged() -> None:
    """Whoever has a source's address says it."""
    told = TurnedAway("signed -95 s ago, by our clock: are both clocks right?")
    assert decode_from_source(encode(told)) == told
    for reason in ("a line\nINFO another", "one\n", "\x1b[2J", "n" * 2049):
        with pytest.raises(msgspec.DecodeError):
            decode_from_source(encode(TurnedAway(reason)))
