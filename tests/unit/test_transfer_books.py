"""Both books in the turns of one thread: what is told when, and whom the mover meets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from kv_transfer.api import Outcome, Sealed, Settled
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import PeerUnreachable
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.thread.books import STANDSTILL, STANDSTILL_S, CommandQueue, TransferBooks
from kv_transfer.thread.event_queues import EventQueues
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import (
    SILENCE_S,
    Confirmed,
    Drive,
    FromSink,
    FromSource,
    Gone,
    Hello,
    Look,
    News,
    Settle,
    Welcome,
)
from tests.fakes.mover import FakeMover

AT, LAYOUT = ("host", 1), KvLayout("bytes", 1, 1, (4,))
WELCOME = Welcome("source", "same", LAYOUT, (), (b"card",), "machine")
TICKET = KvTicket("t", None, *AT, None)
BEFORE_S = STANDSTILL_S - 1.0


@dataclass
class Voice:
    """Keeps what is said."""

    said: list[FromSink | FromSource] = field(default_factory=list)
    parted: list[Address] = field(default_factory=list)

    def send_to_sink(self, peer: bytes, message: FromSource) -> None:
        self.said.append(message)

    def send_to_source(self, address: Address, message: FromSink, now: float) -> None:
        if address[1] == 0:
            raise PeerUnreachable("too much waits")
        self.said.append(message)

    def disconnect(self, address: Address) -> None:
        self.parted.append(address)


@dataclass
class Bell:
    rung: int = 0

    def ring(self) -> None:
        self.rung += 1

    def clear(self) -> None:
        """Nobody waits."""


@dataclass
class Reader(FakeMover):
    """Every read has ended by the next `poll`; if `slow`, once it has parted from somebody."""

    ended: list[ReadEnd] = field(default_factory=list)
    stalled: tuple[Address, ...] = ()
    slow: bool = False
    begun: list[ReadEnd] = field(default_factory=list)

    def read(self, order: ReadOrder) -> None:
        (self.begun if self.slow else self.ended).append((order.read_id, None))

    def disconnect(self, address: Address) -> None:
        super().disconnect(address)
        self.ended += self.begun

    def poll(self) -> list[ReadEnd]:
        ended, self.ended = self.ended, []
        return ended

    def stalled_sources(self) -> tuple[Address, ...]:
        return self.stalled


class Ones:
    """A checksum that costs nothing."""

    blocks_at_once = 1

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        return [1 for _ in blocks]

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        return [1 for _ in slots]


class Rig:
    """The books of one node, which turn when the test says so."""

    def __init__(self) -> None:
        offers = OfferBook(lambda: WELCOME, "same", LAYOUT, "engine", CheckLevel.FULL)
        self.pulls = PullBook(Hello("same", LAYOUT))
        self.mover, self.voice, self.news, self.now = Reader(), Voice(), Bell(), 0.0
        self.books = TransferBooks(
            offers,
            self.pulls,
            self.mover,
            self.voice,
            Ones(),
            CommandQueue(Bell()),
            EventQueues(),
            self.news,
            lambda: self.now,
        )

    def turn(self, *heard: FromSource) -> None:
        """In which this is heard from the source."""
        now = self.books.begin_turn()
        for message in heard:
            self.books.handle_source_message(AT, message, now)
        self.books.finish_turn(now)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_what_a_turn_comes_to_is_told_in_that_turn(rig: Rig) -> None:
    """The next one may begin much later."""
    books, voice = rig.books, rig.voice
    books.offers.offer("t", None)
    books.offers.extend("t", [3])
    books.offers.seal("t", Sealed(0, 0), now=0.0)
    books.handle_sink_message(b"sink", Hello("same", LAYOUT), 0.0)
    books.handle_sink_message(b"sink", Look("t", None, 0), 0.0)
    rig.turn()
    assert [one.blocks for one in voice.said if isinstance(one, News)] == [(), (3,)]
    rig.now = SILENCE_S
    rig.turn()
    assert voice.said[-1] == Gone("t", Outcome.EXPIRED)
    assert list(books.queues.settled) == [Settled("t", Outcome.EXPIRED)]
    assert rig.news.rung == 1


def test_a_source_that_cannot_be_met_fails_its_pulls_at_once(rig: Rig) -> None:
    def refuse(_: Address) -> None:
        raise PeerUnreachable("no such agent")

    rig.mover.meeting = refuse
    rig.pulls.pull(TICKET, [0], 0, now=0.0)
    rig.turn(WELCOME)
    (ended,) = rig.books.queues.arrived
    assert isinstance(ended.error, PeerUnreachable)
    assert rig.mover.parted == rig.voice.parted == [AT]


def test_a_source_to_which_nothing_can_be_said_fails_its_pulls(rig: Rig) -> None:
    rig.pulls.pull(replace(TICKET, port=0), [0], 0, now=0.0)
    rig.turn()
    (ended,) = rig.books.queues.arrived
    assert isinstance(ended.error, PeerUnreachable)


def test_a_source_that_says_the_same_again_is_not_met_again(rig: Rig) -> None:
    """That would cancel what is read from it."""
    rig.pulls.hold(TICKET, now=0.0)
    rig.turn(WELCOME)
    rig.turn(WELCOME)
    assert rig.mover.met == [AT]
    rig.turn(replace(WELCOME, engine_id="another"))
    assert rig.mover.met == [AT, AT]


def test_what_is_read_at_once_settles_at_once(rig: Rig) -> None:
    rig.pulls.pull(TICKET, [0], 0, now=0.0)
    rig.turn(WELCOME, News("t", 0, (3,), Sealed(1, 7)))
    assert isinstance(rig.voice.said[-1], Settle)
    assert not rig.books.queues.arrived
    rig.turn(Confirmed("t"))
    assert [one.error for one in rig.books.queues.arrived] == [None]


def test_what_is_read_by_the_end_of_a_long_turn_took_no_less_than_no_time(rig: Rig) -> None:
    """It is asked for in the middle of the turn; the node counts these seconds, and a counter
    that is to go back ends it.
    """
    rig.mover.slow = True
    rig.pulls.hold(TICKET, now=0.0)
    rig.turn(WELCOME, News("t", 0, (3,), Sealed(1, 7)))
    began = rig.books.begin_turn()
    rig.now = 0.25
    rig.books.commands.post(lambda: rig.pulls.pull(TICKET, [0], 0, now=rig.now))
    rig.books.handle_sink_message(b"sink", Hello("same", LAYOUT), began)
    rig.pulls.to_disconnect.append(("another", 1))
    rig.books.finish_turn(began)
    rig.turn(Confirmed("t"))
    (ended,) = rig.books.queues.arrived
    assert (ended.error, ended.stats.seconds) == (None, 0.0)


def test_a_source_that_has_to_help_is_told(rig: Rig) -> None:
    rig.pulls.hold(TICKET, now=0.0)
    rig.mover.stalled = (AT,)
    rig.turn()
    assert Drive() not in rig.voice.said  # nothing is read from whom we have not met
    rig.turn(WELCOME)
    assert rig.voice.said[-1] == Drive()


class TestWhereTheEngineStandsStill:
    """dynamo#432: its source answers, and has nothing more to say."""

    @pytest.fixture
    def rig(self) -> Rig:
        """What is on offer: "whole" and "part", which a sink waits for, and "unasked"."""
        rig = Rig()
        for name in ("whole", "part", "unasked"):
            rig.books.offers.offer(name, None)
            rig.books.offers.extend(name, [3])
        rig.books.offers.seal("whole", Sealed(0, 0), now=0.0)
        rig.books.handle_sink_message(b"sink", Hello("same", LAYOUT), 0.0)
        rig.books.engine_seen_at = 0.0
        return rig

    def look(self, rig: Rig, now: float, *, away: bool = False) -> list[FromSource | FromSink]:
        """What the sink is told in a turn in which it asks."""
        rig.now, rig.voice.said = now, []
        rig.books.begin_turn(away=away)
        for name in ("whole", "part"):
            rig.books.handle_sink_message(b"sink", Look(name, None, 9), now)
        rig.books.finish_turn(now)
        return rig.voice.said

    def test_nobody_waits_for_what_it_has_not_completed(self, rig: Rig) -> None:
        self.look(rig, 0.0)
        assert Gone("part", STANDSTILL) not in self.look(rig, BEFORE_S)
        assert Gone("part", STANDSTILL) in self.look(rig, STANDSTILL_S)
        assert list(rig.books.queues.settled) == [Settled("part", Outcome.EXPIRED)]
        assert rig.books.offers.num_open == 2

    def test_a_prompt_may_take_any_time_while_it_goes_on(self, rig: Rig) -> None:
        """As when others have their turn first."""
        self.look(rig, 0.0)
        for beat in range(1, 5):
            rig.books.engine_seen_at = beat * BEFORE_S
            self.look(rig, beat * BEFORE_S)
        assert rig.books.offers.num_open == 3

    def test_time_in_which_the_whole_node_stood_still_does_not_count(self, rig: Rig) -> None:
        self.look(rig, STANDSTILL_S, away=True)
        self.look(rig, STANDSTILL_S + 1.0)
        assert rig.books.offers.num_open == 3


def test_before_the_engine_first_asks_it_does_not_stand_still(rig: Rig) -> None:
    rig.books.offers.offer("t", None)
    rig.books.handle_sink_message(b"sink", Hello("same", LAYOUT), 0.0)
    rig.now = STANDSTILL_S
    rig.books.handle_sink_message(b"sink", Look("t", None, 0), rig.now)
    rig.turn()
    assert rig.books.offers.num_open == 1
