"""The transfer thread beside the engine's: what it leaves to it."""

import select
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pytest

from kv_transfer.api import Outcome, Sealed, Settled
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import PeerUnreachable
from kv_transfer.identity import Identity
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.known_sources import Address
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.side_channel.poller import Poller, Ready
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.side_channel.wakeup import Wakeup
from kv_transfer.thread.books import Command, CommandQueue
from kv_transfer.thread.service import (
    DRIVEN_TURN_S,
    IDLE_TURN_S,
    OPEN_TURN_S,
    READING_PAUSE_S,
    TransferService,
)
from kv_transfer.thread.threaded import Connector, ThreadedSource
from kv_transfer.ticket import LEASE_S, KvTicket
from kv_transfer.wire import (
    SILENCE_S,
    Drive,
    Gone,
    Hello,
    Look,
    News,
    Welcome,
    encode,
)
from tests.fakes.caller import SOON_S, calling
from tests.fakes.mover import FakeMover

HERE = "127.0.0.1"


@dataclass
class Rig:
    mover: FakeMover
    service: TransferService
    pauses: list[float]


@pytest.fixture
def rig() -> Iterator[Rig]:
    mover, pauses, reception = (
        FakeMover(),
        list[float](),
        SideChannelServer.bind(HERE, 0, Poller()),
    )
    identity = Identity("engine", HERE, reception.port, "same", KvLayout("bytes", 1, 1, ()))
    service = TransferService(identity, [], mover, reception, pause=pauses.append)
    yield Rig(mover, service, pauses)
    service.close()


def test_reads_under_way_do_not_keep_the_interpreter(rig: Rig) -> None:
    """A thread that never rests lets a step of many small kernels take many times as long."""
    rig.mover.pending = True
    rig.service.turn()
    rig.service.turn()
    assert rig.pauses == [READING_PAUSE_S] * 2


def test_without_reads_there_is_no_pause(rig: Rig) -> None:
    rig.service.turn(0)
    assert rig.pauses == []


def test_a_bell_that_is_late_is_heard_once() -> None:
    """Or the thread would never sleep again, until somebody else posts something."""
    with closing(LateBell()) as bell:
        commands, ran = CommandQueue(bell), list[str]()
        bell.first = commands.run
        commands.post(lambda: ran.append("first"))
        assert ran == ["first"]
        commands.run()
        assert not select.select([bell.fileno()], [], [], 0)[0]
        commands.post(lambda: ran.append("second"))
        assert select.select([bell.fileno()], [], [], 0)[0]


class LateBell(Wakeup):
    """Before it rings, a turn comes by that does what was posted; once."""

    first: Command | None = None

    def ring(self) -> None:
        first, self.first = self.first, None
        if first is not None:
            first()
        super().ring()


def test_who_was_given_up_between_two_turns_is_parted_from_before_anything_else(
    rig: Rig,
) -> None:
    """Or what is begun with the same source in this turn would be parted from, too."""
    at, seen = ("host", 1), list[Address]()
    rig.service.pulls.to_disconnect.append(at)  # as the sweep leaves it
    rig.service.post(lambda: seen.extend(rig.mover.parted))
    rig.service.turn(0)
    assert seen == [at]
    assert rig.mover.parted == [at]


def test_who_was_given_up_while_it_was_met_is_not_taken_for_known(rig: Rig) -> None:
    """It is parted from as soon as that is over, so nothing can be read there."""
    service, lost = rig.service, PeerUnreachable("silent")
    welcome = Welcome("e", "same", service.identity.layout, (), (b"card",), "machine")
    source = SideChannelServer.bind(HERE, 0, Poller())
    at = HERE, source.port
    rig.mover.meeting = lambda address: service.pulls.fail_source(address, lost)
    service.pulls.hold(KvTicket("t", None, *at, None), now=service.clock())
    while not rig.mover.met:
        service.turn()
        for sink, _ in source.receive(source.waiting.ready_now(), 0.0):
            source.send(sink, encode(welcome))
    assert rig.mover.parted == [at]
    assert not service.pulls.has_welcome(at, welcome)
    source.close()


def test_an_offer_is_known_before_anybody_can_ask_for_it(rig: Rig) -> None:
    """Its ticket may come back as a question while a turn is under way."""
    service = rig.service
    me, hello = service.identity, Hello("same", KvLayout("bytes", 1, 1, ()))
    with calling((HERE, me.port)) as sink:
        sink.say(hello)
        while not service.offers.known_sinks.touch(b"sink"):
            service.turn()
        assert isinstance(sink.answer(), Welcome)

        def offer_and_ask() -> float:
            """When the turn has run its commands, and looks at the clock."""
            service.clock = lambda: 0.0
            ticket = ThreadedSource(service).offer("r")
            sink.say(Look(ticket.ticket_id, me.engine_id, 0))
            select.select([one.connection for one in guests.values()], [], [], SOON_S)
            return 0.0

        guests = service.reception._guests
        service.commands.post(lambda: setattr(service, "clock", offer_and_ask))
        service.turn(0)
        assert isinstance(sink.answer(), News)


def test_who_reads_from_a_node_that_ends_is_told(rig: Rig) -> None:
    service = rig.service
    service.offers.offer("t", None)
    with calling((HERE, service.identity.port)) as sink:
        sink.say(Hello("same", KvLayout("bytes", 1, 1, ())))
        sink.say(Look("t", None, 0))
        while not service.offers._leases._deadlines["t"]:
            service.turn()
        assert [type(sink.answer()) for _ in range(2)] == [Welcome, News]
        service.end()
        assert list(service.queues.settled) == [Settled("t", Outcome.WITHDRAWN)]
        assert sink.answer() == Gone("t", Outcome.WITHDRAWN)


def test_what_was_asked_for_just_before_the_end_ends_too(rig: Rig) -> None:
    """Whoever waits for the end of an offer or a pull has blocks that wait with it."""
    service = rig.service
    both = Connector.over(service)
    ticket = both.source.offer("r")
    pulled = KvTicket("s/t", "s", HERE, 9, "same")
    both.sink.pull(pulled, [1])
    service.end()
    assert list(service.queues.settled) == [Settled(ticket.ticket_id, Outcome.WITHDRAWN)]
    (ended,) = service.queues.arrived
    assert ended.ticket_id == pulled.ticket_id
    assert ended.error is not None


def test_who_posts_at_the_end_or_after_it_is_not_harmed() -> None:
    """The engine's thread may not know yet; the last command may be run before it has rung."""
    bell = LateBell()
    bell.first = bell.close
    commands = CommandQueue(bell)
    commands.post(lambda: None)
    CommandQueue(bell).post(lambda: None)
    assert commands, "nobody is woken for it"


def test_what_is_open_is_looked_after_soon(rig: Rig) -> None:
    """Nothing happens when a lease ends, or when a source is silent for too long."""
    service = rig.service
    assert service._turn_s() == IDLE_TURN_S
    service.offers.offer("t", None)
    assert service._turn_s() == OPEN_TURN_S
    service.offers.withdraw("t")
    service.pulls.hold(KvTicket("s/t", "s", HERE, 9, "same"), now=0.0)
    assert service._turn_s() == OPEN_TURN_S


def test_what_advances_by_turns_alone_has_them_at_once(rig: Rig) -> None:
    service = rig.service
    service.offers.offer("t", None)
    rig.mover.pending = True
    assert service._turn_s() == 0.0
    rig.mover.pending = False
    hello = Hello("same", KvLayout("bytes", 1, 1, ()), CheckLevel.FULL)
    service.offers.handle_message(b"sink", hello, now=0.0)
    service.offers.handle_message(b"sink", Look("t", None, 0), now=0.0)
    service.offers.extend("t", [1])
    assert service._turn_s() == 0.0


@pytest.mark.parametrize(("needs", "turn_s"), [(True, DRIVEN_TURN_S), (False, IDLE_TURN_S)])
def test_an_agent_is_driven_if_it_needs_that(rig: Rig, needs: bool, turn_s: float) -> None:
    service = rig.service
    service.clock = float
    rig.mover.needs_polling = needs
    hello = Hello("same", KvLayout("bytes", 1, 1, ()))
    for message in (hello, Drive()):
        service.offers.handle_message(b"sink", message, now=0.0)
    assert service._turn_s() == turn_s


def test_a_turn_that_ends_while_the_sweep_waits_for_its_books_is_left_alone(rig: Rig) -> None:
    service, seen = rig.service, [SILENCE_S, SILENCE_S, 0.0]
    service._attendance.due_at = 0.0
    service.clock = lambda: seen.pop(0) if seen else 0.0
    service.post(lambda: pytest.fail("the next turn runs it"))
    service.sweep()
    service.sweep()
    assert seen == []


def test_books_that_are_closed_are_not_swept(rig: Rig) -> None:
    """Its sockets are gone, and whoever posts something wakes nobody."""
    service = rig.service
    service.close()
    service.clock = lambda: 1e9
    service.post(lambda: pytest.fail("nobody runs it"))
    service.sweep()
    service.sweep()
    assert service.late_s == 0.0


@pytest.mark.parametrize("where", ["it waits", "it works"])
def test_a_thread_that_was_away_ends_nothing_before_it_has_heard(rig: Rig, where: str) -> None:
    """Stopped, starved or suspended: what peers said meanwhile may be heard in a while only."""
    service, now = rig.service, [0.0]
    service.clock = lambda: now[0]
    service.pulls.hold(KvTicket("s/t", "s", HERE, 9, "same"), now=0.0)
    service.offers.offer("t", None)
    service.offers.seal("t", Sealed(0, 0), now=SILENCE_S - LEASE_S)
    service.turn(0)
    nap = Nap(now, SILENCE_S)
    if where == "it waits":
        service._waiting = nap  # type: ignore[assignment]
    else:
        rig.mover.poll = nap.poll  # type: ignore[method-assign]
    service.turn(0)
    service.turn(0)
    assert rig.mover.parted == []
    assert (service.pulls.num_open, service.offers.num_open) == (1, 1)
    now[0] += SILENCE_S
    service.turn(0)
    assert rig.mover.parted == [(HERE, 9)]
    assert service.offers.num_open == 0


@dataclass
class Nap:
    """A call that takes so long, once."""

    now: list[float]
    seconds: float

    def watch(self, *_: object) -> None:
        """Nothing is waited for."""

    def ready_now(self) -> Ready:
        return {}

    def wait(self, *_: object) -> None:
        self.now[0] += self.seconds
        self.seconds = 0.0

    def poll(self) -> Sequence[ReadEnd]:
        self.wait()
        return []
