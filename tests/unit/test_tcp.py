"""The TCP mover among sockets that misbehave: it does not die, spin or keep its thread."""

import ctypes
import random
import select
import socket
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest

from engine.api import KvRegion
from kv_transfer.errors import PeerUnreachable
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.lookup import Lookup, addresses
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.movers.tcp import TcpMover, _TcpCard
from kv_transfer.regions import BlockRun
from kv_transfer.wire import Welcome

HERE, AT = "127.0.0.1", ("source", 1)
BLOCK, BLOCKS = 8 << 20, 8
SOON_S = 5.0


def mover(memory: bytearray) -> TcpMover:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return TcpMover.start(HERE, HERE, [KvRegion(address, BLOCK, BLOCKS, "cpu")])


def welcome(source: TcpMover, card: bytes | None = None) -> Welcome:
    layout = KvLayout("bytes", 1, 1, (BLOCK,))
    return Welcome("engine", "same", layout, (), (card or source.card,), "machine")


@pytest.fixture
def source() -> Iterator[TcpMover]:
    memory = bytearray(b"a" * BLOCK * BLOCKS)
    one = mover(memory)
    yield one
    one.close()


@pytest.fixture
def sink(source: TcpMover) -> Iterator[TcpMover]:
    memory = bytearray(BLOCK * BLOCKS)
    one = mover(memory)
    one.connect(AT, welcome(source))
    yield one
    one.close()


@pytest.mark.parametrize(
    "card",
    [
        b"\xff",
        b"\x83\xa4host\xa1\xff\xa4port\x01\xa6secret\xc4\x00",  # no UTF-8
        b"\x81\xa1x" + b"\x91" * 5_000 + b"\xc0",
        *(
            msgspec.msgpack.encode(_TcpCard(HERE, port, b""))
            for port in (-1, 0, 65536, 1 << 63)
        ),
    ],
)
def test_a_card_without_sense_is_no_way_to_its_peer(sink: TcpMover, card: bytes) -> None:
    with pytest.raises(PeerUnreachable):
        sink.connect(("elsewhere", 1), welcome(sink, card))


def ready(mover: TcpMover) -> bool:
    """Whether something announces itself."""
    readable, _, _ = select.select(list(mover.interests), [], [], SOON_S)
    return bool(readable)


def read(source: TcpMover, sink: TcpMover) -> Sequence[ReadEnd]:
    """One block."""
    sink.read(ReadOrder(1, AT, [BlockRun(0, 0, 1)]))
    while not (ended := sink.poll()):
        source.poll()
    return ended


def test_a_link_whose_source_has_left_announces_nothing(
    source: TcpMover, sink: TcpMover
) -> None:
    assert read(source, sink) == [(1, None)]
    assert len(sink.interests) == 2
    source.close()
    assert ready(sink)
    assert sink.poll() == []
    assert list(sink.interests) == [sink.serving.listener.fileno()]


def test_a_link_that_broke_while_idle_is_opened_again_by_the_next_read(
    source: TcpMover, sink: TcpMover
) -> None:
    assert read(source, sink) == [(1, None)]
    for guest in list(source.serving._guests.values()):
        source.serving._close(guest)
    assert ready(sink)
    assert sink.poll() == []
    assert read(source, sink) == [(1, None)]


def test_who_was_forgotten_is_not_called_again(source: TcpMover, sink: TcpMover) -> None:
    assert read(source, sink) == [(1, None)]
    sink.disconnect(AT)
    ((_, error),) = read(source, sink)
    assert isinstance(error, PeerUnreachable)


def test_a_source_waits_for_room_only_while_it_has_more_to_send(
    source: TcpMover, sink: TcpMover
) -> None:
    """Else the rest would come with its next idle turn, or it would never rest."""
    sink.read(ReadOrder(1, AT, [BlockRun(0, 0, 4)]))
    while not (full := [one for one in source.serving._guests.values() if one.answers]):
        assert sink.poll() == []
        source.poll()
    number = full[0].connection.fileno()
    assert source.interests[number] == select.POLLIN | select.POLLOUT
    while not sink.poll():
        source.poll()
    assert source.interests[number] == select.POLLIN


class Refusing:
    """A listener whose guests are gone, or that has no file descriptor left for one."""

    def __init__(self, listener: socket.socket, error: OSError) -> None:
        self.listener, self.error = listener, error

    def accept(self) -> tuple[socket.socket, object]:
        raise self.error

    def close(self) -> None:
        self.listener.close()


@pytest.mark.parametrize("error", [ConnectionAbortedError(), OSError(24, "too many files")])
def test_a_guest_that_cannot_be_let_in_ends_nobody(source: TcpMover, error: OSError) -> None:
    source.serving.listener = Refusing(source.serving.listener, error)  # type: ignore[assignment]
    assert source.poll() == []


class Endless:
    """A connection that takes whatever it is given, and gives whatever is asked."""

    def __init__(self, instead_of: socket.socket | None) -> None:
        assert instead_of is not None
        self.instead_of = instead_of
        self.sent = self.received = 0

    def send(self, data: bytearray) -> int:
        return len(data)

    def sendmsg(self, views: Sequence[memoryview]) -> int:
        count = sum(map(len, views))
        self.sent += count
        return count

    def recvmsg_into(self, views: Sequence[memoryview]) -> tuple[int]:
        count = sum(map(len, views))
        self.received += count
        return (count,)

    def recv(self, _: int) -> bytes:
        raise BlockingIOError

    def fileno(self) -> int:
        return self.instead_of.fileno()

    def close(self) -> None:
        self.instead_of.close()


def test_a_long_answer_is_sent_in_turns(source: TcpMover, sink: TcpMover) -> None:
    """Or no lease would be kept alive meanwhile, by a fast reader least of all."""
    read(source, sink)
    (guest,) = source.serving._guests.values()
    guest.connection = fast = Endless(guest.connection)  # type: ignore[assignment]
    guest.answers.append(memoryview(bytearray(BLOCK * BLOCKS)))
    source.serving._watch(guest)
    source.poll()
    assert 0 < fast.sent < BLOCK * BLOCKS


def test_a_long_answer_is_received_in_turns(source: TcpMover, sink: TcpMover) -> None:
    assert read(source, sink) == [(1, None)]
    (guest,) = source.serving._guests.values()
    guest.connection.send(b"more")
    assert ready(sink)
    link = sink._links.get(AT)
    assert link is not None
    link.connection = fast = Endless(link.connection)  # type: ignore[assignment]
    sink.read(ReadOrder(1, AT, [BlockRun(0, 0, BLOCKS)]))
    assert 0 < fast.received < BLOCK * BLOCKS
    assert [ended for _ in range(BLOCKS) for ended in sink.poll()] == [(1, None)]


SMALL, MANY = 8, 200_000


def scattered(memory: bytearray) -> TcpMover:
    """As two regions of small blocks, each half of the memory."""
    address, half = ctypes.addressof(ctypes.c_char.from_buffer(memory)), len(memory) // 2
    places = (address, address + half)
    regions = [KvRegion(place, SMALL, half // SMALL, "cpu") for place in places]
    return TcpMover.start(HERE, HERE, regions)


def test_a_read_of_very_many_runs_is_asked_for_in_parts() -> None:
    """Or it would end the link, as a request beyond all measure, and each try again."""
    theirs = bytearray(random.Random(1).randbytes(4 * MANY * SMALL))
    ours = bytearray(len(theirs))
    source, sink = scattered(theirs), scattered(ours)
    sink.connect(AT, welcome(source))
    sink.read(
        ReadOrder(1, AT, [BlockRun(2 * one, 2 * (MANY - 1 - one), 1) for one in range(MANY)])
    )
    ended = list[ReadEnd]()
    while not ended:
        source.poll()
        ended += sink.poll()
    assert ended == [(1, None)]
    there, here = (np.frombuffer(one, np.uint64).reshape(2, -1) for one in (theirs, ours))
    assert np.array_equal(here[:, ::2], there[:, ::2][:, ::-1])
    source.close()
    sink.close()


def test_a_name_that_is_not_known_yet_holds_up_no_turn(source: TcpMover) -> None:
    """And no lease, which the same thread renews; the read begins once it is known."""
    slow, memory = Lookup(), bytearray(BLOCK * BLOCKS)
    sink = mover(memory)
    sink.look_up = lambda *_: slow
    sink.connect(AT, welcome(source))
    sink.read(ReadOrder(1, AT, [BlockRun(0, 0, 1)]))
    assert sink.poll() == []
    slow._found.set_result(addresses(*source.serving.listener.getsockname()))
    while not (ended := sink.poll()):
        source.poll()
    assert ended == [(1, None)]
    assert memory[:BLOCK] == b"a" * BLOCK
    sink.close()


def test_a_source_is_read_at_the_second_address_of_its_name(source: TcpMover) -> None:
    memory = bytearray(BLOCK * BLOCKS)
    sink = mover(memory)
    with socket.socket() as nobody:
        nobody.bind((HERE, 0))
        places = nobody.getsockname(), source.serving.listener.getsockname()
        both = [one for place in places for one in addresses(*place)]
        sink.look_up = lambda *_: Lookup.known(both)
        sink.connect(AT, welcome(source))
        sink.read(ReadOrder(1, AT, [BlockRun(0, 0, 1)]))
        while not (ended := sink.poll()):
            source.poll()
    assert ended == [(1, None)]
    assert memory[:BLOCK] == b"a" * BLOCK
    sink.close()


def test_a_name_that_nobody_has_fails_its_reads(source: TcpMover) -> None:
    slow, sink = Lookup(), mover(bytearray(BLOCK * BLOCKS))
    sink.look_up = lambda *_: slow
    sink.connect(AT, welcome(source))
    sink.read(ReadOrder(1, AT, [BlockRun(0, 0, 1)]))
    slow._found.set_exception(OSError("no such host"))
    (ended,) = sink.poll()
    assert isinstance(ended[1], PeerUnreachable)
    sink.close()


def test_a_lookup_that_fails_announces_it() -> None:
    """Of what can be no name, so that no name server is asked, which may take long."""
    lookup = Lookup.of("x" * 64, 1)
    over = lookup.fileno()
    assert over is not None
    assert select.select([over], [], [], SOON_S)[0]
    with pytest.raises(OSError, match="label too long"):
        lookup.found()
    assert lookup.fileno() is None
