"""A mover in another process does what it is told, and is missed when it stops answering."""

import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe

import pytest

from engine.api import KvRegion
from kv_transfer.blocks.mapping import BlockMapping, MappedPiece
from kv_transfer.blocks.runs import pair_runs
from kv_transfer.errors import PeerUnreachable, TransferCancelled
from kv_transfer.integrity.checksums import BlockChecksums
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.movers.remote import (
    ASK_S,
    DRIVE_S,
    REST_S,
    STUCK_S,
    MoverServer,
    RankStuck,
    RemoteMover,
)
from kv_transfer.regions import RemoteRegion
from kv_transfer.wire import Welcome
from tests.fakes.mover import FakeMover

AT: Address = ("source", 1)
REGION = KvRegion(4096, 64, 8, "cpu")
THEIRS = RemoteRegion(1, 64, 8, "cpu")
CUT = BlockMapping(1, 1, 32, 64, (MappedPiece(0, 0, 0, 0, 32), MappedPiece(1, 0, 0, 32, 32)))


def welcome(cards: int, regions: int) -> Welcome:
    told = KvLayout("uint8", 4, 2, (64,) * regions, regions)
    return Welcome("source", "same", told, (THEIRS,) * regions, (b"card",) * cards, "here")


@dataclass
class Reader(FakeMover):
    """Remembers what it was to read, and ends it when it is told to."""

    orders: list[ReadOrder] = field(default_factory=list)
    ends: list[ReadEnd] = field(default_factory=list)
    stalled: tuple[Address, ...] = ()

    def stalled_sources(self) -> tuple[Address, ...]:
        stalled, self.stalled = self.stalled, ()
        return stalled

    def read(self, order: ReadOrder) -> None:
        self.orders.append(order)

    def poll(self) -> list[ReadEnd]:
        ended, self.ends = self.ends, []
        return ended


@dataclass
class Both:
    """Both ends, in one process, and a clock that is held."""

    server: MoverServer
    reader: Reader
    remote: RemoteMover
    now: float = 0.0


@pytest.fixture
def both() -> Iterator[Both]:
    here, there = Pipe()
    with here, there:
        reader = Reader(needs_polling=True)
        server = MoverServer(there, reader, REGION, BlockChecksums([REGION]))
        server.introduce()
        found = Both(server, reader, RemoteMover.over(here))
        found.remote.clock = lambda: found.now
        yield found


def test_it_is_introduced_by_its_region_and_its_card(both: Both) -> None:
    told = both.remote.introduced
    assert (told.region.address, told.region.num_blocks) == (4096, 8)
    assert (both.remote.card, both.remote.needs_polling) == (b"card", True)


@pytest.mark.parametrize(
    "error", [None, PeerUnreachable("it is gone"), TransferCancelled("left")]
)
def test_a_read_goes_there_and_its_end_comes_back(
    both: Both, error: PeerUnreachable | TransferCancelled | None
) -> None:
    order = ReadOrder(-3, AT, pair_runs([1, 2, 7], [4, 5, 0]), (), CUT)
    both.remote.connect(AT, welcome(1, 1))
    both.remote.read(order)
    both.server.turn()
    (read,) = both.reader.orders
    assert both.reader.met == [AT]
    assert (read.read_id, read.address, read.cut) == (-3, AT, CUT)
    assert list(read.runs) == list(order.runs)
    both.reader.ends = [(-3, error)]
    both.server.turn()
    ((number, told),) = both.remote.poll()
    assert (number, repr(told)) == (-3, repr(error))


def test_a_peer_that_cannot_be_met_is_parted_from(both: Both) -> None:
    def refuse(_: Address) -> None:
        raise PeerUnreachable("no such agent")

    both.reader.meeting = refuse
    both.remote.connect(AT, welcome(1, 1))
    both.server.turn()
    assert both.reader.parted == [AT]


def test_who_is_parted_from_here_is_parted_from_there(both: Both) -> None:
    """Or its reads would go on, and its agent would stay loaded."""
    both.remote.disconnect(AT)
    both.server.turn()
    assert both.reader.parted == [AT]


def test_it_serves_until_the_other_end_is_gone(both: Both) -> None:
    both.remote.disconnect(AT)
    both.remote.close()
    assert both.remote.line.closed
    with pytest.raises(EOFError):
        both.server.run()
    assert both.reader.parted == [AT]


def test_what_there_is_to_do_is_not_waited_for(both: Both) -> None:
    """A read that nothing announces, a message, a socket of the mover's."""
    here, there = Pipe()
    begun = time.monotonic()
    both.reader.pending = True
    both.server._wait()
    both.reader.pending = False
    both.remote.disconnect(AT)
    both.server._wait()
    both.server.turn()
    with here, there:
        both.reader.interests = {there.fileno(): select.POLLIN}
        here.send_bytes(b"ready")
        both.server._wait()
    assert time.monotonic() - begun < REST_S


def test_a_question_is_answered_whatever_comes_behind_it(both: Both) -> None:
    """Without an answer the whole node ends."""
    both.remote.poll()  # asks
    both.remote.disconnect(AT)
    both.server.turn()
    both.remote.poll()
    assert both.remote._answered


def test_a_rank_that_stopped_is_noticed_and_one_that_is_slow_is_not(both: Both) -> None:
    both.remote.poll()
    for _ in range(3):
        both.now += STUCK_S - 1
        both.server.turn()
        both.remote.poll()  # the answer
        both.now += ASK_S
        both.remote.poll()  # the next question
    both.now += STUCK_S / 2
    both.remote.poll()
    both.now += STUCK_S / 2
    with pytest.raises(RankStuck):
        both.remote.poll()


def test_an_agent_there_is_kept_going_for_its_peers_and_not_too_often(both: Both) -> None:
    """Who reads from it waits for that, and nothing else may wake its process."""
    for elapsed_s, told in ((0.0, True), (DRIVE_S / 2, False), (DRIVE_S, True)):
        both.now += elapsed_s
        both.remote.poll()
        assert both.server.line.poll() is told
        both.server.turn()


def test_whose_help_a_read_there_needs_is_known_here_once(both: Both) -> None:
    """Over a network nothing is read until the source is asked."""
    both.reader.stalled = (AT,)
    both.server.turn()
    both.remote.poll()
    assert list(both.remote.stalled_sources()) == [AT]
    both.server.turn()
    both.remote.poll()
    assert not both.remote.stalled_sources()


class Silent:
    """A line over which nothing comes."""

    waited_s = 0.0

    def poll(self, seconds: float) -> bool:
        self.waited_s += seconds
        assert self.waited_s <= STUCK_S
        return False


def test_checksums_that_do_not_come_are_not_waited_for_forever(both: Both) -> None:
    """Neither offers nor leases are looked after meanwhile: the node has to end."""
    both.remote.line.close()
    both.remote.line = silent = Silent()  # type: ignore[assignment]
    with pytest.raises(RankStuck):
        both.remote.receive_checksums()
    assert silent.waited_s == STUCK_S


def test_ranks_that_were_suspended_together_are_not_stuck(both: Both) -> None:
    both.remote.poll()  # asks
    both.now += 3600
    both.remote.poll()
    both.server.turn()
    both.remote.poll()  # the answer
    assert both.remote._answered
