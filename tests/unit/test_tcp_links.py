"""A TCP sink's links to many sources, of which few have something to say."""

from collections.abc import Iterator

import pytest

from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.tcp import TcpMover
from kv_transfer.regions import BlockRun
from tests.unit.test_tcp import BLOCK, BLOCKS, mover, ready, welcome

PLACES, LETTERS = [("source", number) for number in range(3)], (b"a", b"b", b"c")


@pytest.fixture
def sources() -> Iterator[list[TcpMover]]:
    """With one letter each."""
    memories = [bytearray(letter * BLOCK * BLOCKS) for letter in LETTERS]
    some = [mover(memory) for memory in memories]
    yield some
    for one in some:
        one.close()


@pytest.fixture
def memory() -> bytearray:
    return bytearray(BLOCK * BLOCKS)


@pytest.fixture
def sink(sources: list[TcpMover], memory: bytearray) -> Iterator[TcpMover]:
    """It has read one block of each source."""
    one = mover(memory)
    for place, source in zip(PLACES, sources, strict=True):
        one.connect(place, welcome(source))
        read(one, source, place)
    yield one
    one.close()


def read(sink: TcpMover, source: TcpMover, place: tuple[str, int]) -> None:
    sink.read(ReadOrder(1, place, [BlockRun(0, 0, 1)]))
    while not (ended := sink.poll()):
        source.poll()
    assert ended == [(1, None)]


class Idle:
    """A connection that is not to be used: each call is one of the system."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fileno(self) -> int:
        return self.number

    def close(self) -> None:
        """Whoever lent the number does it."""


def test_links_that_say_nothing_cost_a_poll_nothing(
    sink: TcpMover, sources: list[TcpMover]
) -> None:
    lent = []
    for place in PLACES[:2]:
        link = sink._links.get(place)
        assert link is not None
        assert link.connection is not None
        lent.append(link.connection)
        link.connection = Idle(link.connection.fileno())  # type: ignore[assignment]
    assert sink.poll() == []
    read(sink, sources[2], PLACES[2])
    for connection in lent:
        connection.close()


def test_a_new_link_with_the_number_of_an_old_one_is_heard(
    sink: TcpMover, sources: list[TcpMover], memory: bytearray
) -> None:
    for place, source, letter in zip(reversed(PLACES), sources, LETTERS, strict=True):
        sink.disconnect(place)
        sink.connect(place, welcome(source))
        read(sink, source, place)
        assert memory[:1] == letter


def test_each_link_that_broke_is_forgotten_alone(
    sink: TcpMover, sources: list[TcpMover]
) -> None:
    sources[1].close()
    assert ready(sink)
    assert sink.poll() == []
    assert sink._links.addresses == (PLACES[0], PLACES[2])
    for number in (0, 2):
        read(sink, sources[number], PLACES[number])
