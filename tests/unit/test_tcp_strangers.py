"""Who reaches the TCP mover's port and does not know its secret costs it little."""

import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from kv_transfer.accepting import OutOfResources
from kv_transfer.blocks.runs import BlockRuns
from kv_transfer.movers import tcp_serving
from kv_transfer.movers.spans import SlotLayout, SlotRuns
from kv_transfer.movers.tcp_requests import SECRET_BYTES, framed
from kv_transfer.movers.tcp_serving import RegionServer
from kv_transfer.regions import BlockRun
from tests.fakes.sharded import Memory, layout

HERE, SOON_S = "127.0.0.1", 5.0
PAGE = 1 << 15
SLOTS = SlotLayout(4, 16, True, ((0, 0, 48),))  # the last one ends with its block of 96 bytes


@pytest.fixture
def serving() -> Iterator[RegionServer]:
    one = RegionServer.start(HERE, [])
    yield one
    one.close()


def coming(serving: RegionServer, says: bytes = b"", whence: str = HERE) -> socket.socket:
    """A connection that was taken in, and whose first words were heard."""
    here = serving.listener.getsockname()
    one = socket.create_connection(here, SOON_S, source_address=(whence, 0))
    one.sendall(says)
    assert select.select([serving.listener], [], [], SOON_S)[0]
    serving.poll()
    return one


def stays(serving: RegionServer, one: socket.socket) -> bool:
    """As our side sees it."""
    guests = serving._guests.values()
    return one.getsockname() in [guest.connection.getpeername() for guest in guests]


def test_strangers_do_not_use_up_the_file_descriptors(
    serving: RegionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that comes shuts out one that came before, and none who has shown the secret."""
    monkeypatch.setattr(tcp_serving, "MOST_STRANGERS", 2)
    with (
        closing(coming(serving, serving.secret)) as known,
        closing(coming(serving, serving.secret[:-1])) as first,
        closing(coming(serving)) as second,
        closing(coming(serving)) as third,
    ):
        assert [stays(serving, one) for one in (known, first, second, third)] == [
            *(True, False, True, True)
        ]
        assert first.recv(1) == b""
        second.sendall(serving.secret)
        assert select.select(list(serving.interests), [], [], SOON_S)[0]
        serving.poll()
        with closing(coming(serving)):
            assert stays(serving, second)
            assert len(serving._strangers) == 2


def test_nothing_is_kept_of_a_stranger_but_as_many_bytes_as_the_secret_has(
    serving: RegionServer,
) -> None:
    """A length that it names is not waited for."""
    with closing(coming(serving, b"\xff" * (SECRET_BYTES - 1))) as one:
        (guest,) = serving._guests.values()
        one.sendall(b"\xff" * 4096)
        assert select.select([guest.connection], [], [], SOON_S)[0]
        serving.poll()
        assert guest.received == b"\xff" * SECRET_BYTES
        assert list(serving.interests) == [serving.listener.fileno()]


@pytest.mark.parametrize("wrong", [0, SECRET_BYTES - 1])
def test_a_secret_that_is_wrong_in_one_byte_is_wrong(serving: RegionServer, wrong: int) -> None:
    said = bytearray(serving.secret)
    said[wrong] ^= 1
    with closing(coming(serving, bytes(said))) as one:
        assert not stays(serving, one)


def test_a_secret_may_come_in_pieces_and_with_requests_behind_it(serving: RegionServer) -> None:
    nothing = framed(BlockRuns.of(()), None)
    with closing(coming(serving, serving.secret[:3])) as one:
        (guest,) = serving._guests.values()
        for piece in (serving.secret[3:] + nothing[:5], nothing[5:]):
            assert not guest.answers
            one.sendall(piece)
            assert select.select([guest.connection], [], [], SOON_S)[0]
            serving.poll()
        assert guest.known
        assert not guest.received
        assert stays(serving, one)


def test_a_port_without_file_descriptors_is_not_waited_for(
    serving: RegionServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be readable for as long as somebody is in line there."""
    with monkeypatch.context() as patch:
        patch.setattr(tcp_serving, "accept", no_room)
        with closing(coming(serving)) as waiting:
            assert not serving.interests
            patch.undo()
            serving.poll()
            assert stays(serving, waiting)
            assert serving.listener.fileno() in serving.interests


def no_room(_: socket.socket) -> None:
    raise OutOfResources


@pytest.mark.parametrize(
    ("runs", "slots"),
    [
        ([(0, 1), (9, 4)], None),
        ([(9, 4), (0, 1)], None),
        ([(-1, 2), (3, 1)], None),
        ([(0, 1), (3, 0)], None),
        ([(44, 5)], SLOTS),
        ([(47, 1), (48, 1)], SLOTS),
        ([(-1, 1), (3, 1)], SLOTS),
        ([(3, 0)], SLOTS),
        ([], SLOTS),
        ([(0, 1)], SlotLayout(4, 16, True, ((0, 0, 48), (0, 1, 48)))),
        ([(0, 1)], SlotLayout(4, 17, True, ((0, 0, 48),))),
        ([(0, 1)], SlotLayout(4, 16, True, ((0, -1, 48),))),
        ([(0, 1)], SlotLayout(4, 16, True, ((0, 0, 0),))),
        ([(0, 1)], SlotLayout(4, 16, True, ((1, 0, 48),))),
        ([(0, 1)], SlotLayout(0, 16, True, ((0, 0, 48),))),
        ([(0, 4)], SlotLayout(4, -16, True, ((0, 0, 48),))),
        ([(0, 1)], SlotLayout(4, 16, True, ((-1, 0, 48),))),
        ([(0, 1)], SlotLayout(4, 16, True, ())),
        ([(-4, 8)], SLOTS),
    ],
)
def test_what_lies_beyond_our_memory_is_not_served(
    runs: SlotRuns, slots: SlotLayout | None
) -> None:
    """Not even in part: bytes that are missing would shift all that follow to wrong places."""
    memory = Memory(layout(4), 12)
    with (
        closing(RegionServer.start(HERE, memory.regions)) as serving,
        pytest.raises(IndexError),
    ):
        list(serving.views(runs, slots))


def test_the_last_bytes_of_our_memory_are_served() -> None:
    memory = Memory(layout(4), 12)
    memory.ranks[0][-8:] = range(8)
    with closing(RegionServer.start(HERE, memory.regions)) as serving:
        (block,) = serving.views([(11, 1)], None)
        (slot,) = serving.views([(12 * 4 - 1, 1)], SLOTS)
        assert (len(block), len(slot)) == (96, 48)
        assert bytes(block[-8:]) == bytes(slot[-8:]) == bytes(range(8))
        del block, slot


def test_a_short_request_does_not_ask_for_a_list_of_all_our_bytes() -> None:
    """It would occupy the thread that keeps leases alive, and much memory."""
    every_byte = SlotLayout(PAGE, 1, True, ((0, 0, 1),))
    assert not is_answered(64 * PAGE, every_byte)


@pytest.mark.parametrize(("count", "answered"), [(4, True), (5, False)])
def test_a_request_is_of_no_more_pieces_than_are_listed_at_once(
    monkeypatch: pytest.MonkeyPatch, count: int, *, answered: bool
) -> None:
    monkeypatch.setattr(tcp_serving, "MOST_PIECES_ASKED", 8)
    two = SlotLayout(1, 1, True, ((0, 0, 1), (0, 8, 1)))
    assert is_answered(count, two) is answered


def is_answered(count: int, slots: SlotLayout) -> bool:
    """Who asks for so many slots, and knows the secret."""
    memory = Memory(layout(PAGE, heads=1, layers=1, parts=1, row_bytes=1), 64)
    request = framed(BlockRuns.of([BlockRun(0, 0, count)]), slots)
    with (
        closing(RegionServer.start(HERE, memory.regions)) as serving,
        closing(coming(serving, serving.secret + request)) as one,
    ):
        return stays(serving, one)


def test_who_reads_no_answer_is_not_heard_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be sent would take more and more memory; it is heard as soon as it reads."""
    monkeypatch.setattr(tcp_serving, "MOST_ANSWERS", 4)
    memory = Memory(layout(PAGE, heads=1, layers=1, parts=1, row_bytes=1), 64)
    request = framed(BlockRuns.of([BlockRun(0, 0, 64)] * 20), None)
    with (
        closing(RegionServer.start(HERE, memory.regions)) as serving,
        closing(coming(serving, serving.secret + request)) as one,
    ):
        (guest,) = serving._guests.values()
        assert len(guest.answers) > 4
        one.sendall(request)
        assert select.select([guest.connection], [], [], SOON_S)[0]
        before = len(guest.answers)
        serving.poll()
        assert len(guest.answers) <= before
        number = guest.connection.fileno()
        assert serving.interests[number] == select.POLLOUT
        left = 2 * 20 * 64 * PAGE
        while left:
            serving.poll()
            left -= len(one.recv(left))
        serving.poll()
        assert serving.interests[number] == select.POLLIN
        guest.answers.clear()


@pytest.mark.parametrize("blocks", [1, 64])
def test_requests_that_came_together_are_answered_one_after_another(
    monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """Whether a socket has room for a whole answer or not."""
    monkeypatch.setattr(tcp_serving, "MOST_ANSWERS", 4)
    memory, runs = Memory(layout(PAGE, heads=1, layers=1, parts=1, row_bytes=1), 64), 6
    request = framed(BlockRuns.of([BlockRun(0, 0, blocks)] * runs), None)
    with (
        closing(RegionServer.start(HERE, memory.regions)) as serving,
        closing(coming(serving, serving.secret + 3 * request)) as one,
    ):
        (guest,) = serving._guests.values()
        left = 3 * runs * blocks * PAGE
        while left:
            assert len(guest.answers) <= 4 + runs
            if is_woken(serving):
                serving.poll()
            left -= len(one.recv(left))
        guest.answers.clear()


def is_woken(serving: RegionServer) -> bool:
    waiting = select.poll()
    for number, interest in serving.interests.items():
        waiting.register(number, interest)
    return bool(waiting.poll(0))
