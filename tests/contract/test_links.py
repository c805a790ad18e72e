"""What a link between two nodes survives; for connectors that have one."""

import pytest

from kv_transfer.api import Arrived, Sealed
from kv_transfer.errors import PeerUnreachable
from kv_transfer.side_channel.source_connection import RETRY_S
from kv_transfer.thread.threaded import ThreadedSink
from kv_transfer.wire import SILENCE_S
from tests.contract.rigs import ANY_MOVE, Rig, RigMaker, nixl_rig, tcp_rig


def begin(rig: Rig, name: str) -> str:
    """Pull one block; the ticket's id."""
    ticket = rig.source.offer(name)
    rig.source.extend(ticket.ticket_id, [5])
    rig.source.seal(ticket.ticket_id, Sealed(1, 7))
    rig.sink.pull(ticket, into=[0])
    return ticket.ticket_id


def move(rig: Rig, name: str) -> Arrived:
    begin(rig, name)
    (arrived,) = rig.arrive()
    return arrived


def within_patience(rig: Rig, count: int) -> list[Arrived]:
    """So many arrivals, before a silent source would be given up."""
    arrived, waited_s = rig.arrive(), 0.0
    while len(arrived) < count and waited_s < SILENCE_S - 2 * RETRY_S:
        rig.advance(RETRY_S)
        waited_s += RETRY_S
        arrived += rig.arrive()
    return arrived


BOTH = pytest.mark.parametrize("make", [nixl_rig, tcp_rig], ids=["nixl", "tcp"])


@BOTH
def test_a_link_that_broke_costs_one_pull(make: RigMaker) -> None:
    with make() as rig:
        rig.fill(5, b"a")
        assert move(rig, "before").error is None
        ticket = rig.source.offer("where")
        assert isinstance(rig.sink, ThreadedSink)
        rig.sink.service.mover.disconnect((ticket.host, ticket.port))  # the books do not know
        assert isinstance(move(rig, "under").error, PeerUnreachable)
        rig.ours[0] = 0
        after = move(rig, "after")
        assert after == Arrived(after.ticket_id, Sealed(1, 7), stats=ANY_MOVE)
        assert rig.letters[:1] == b"a"


@BOTH
def test_a_source_that_was_started_anew_is_read_by_the_first_pull(make: RigMaker) -> None:
    """Neither is its old memory read, nor is a pull lost to find out (vllm#49238)."""
    with make() as rig:
        rig.fill(5, b"a")
        assert move(rig, "before").error is None
        for letter in (b"b", b"c"):
            rig.restart(rig)
            rig.fill(5, letter)
            name = begin(rig, "after")
            assert within_patience(rig, 1) == [Arrived(name, Sealed(1, 7), stats=ANY_MOVE)]
            assert rig.letters[:1] == letter


@BOTH
def test_what_was_pulled_from_it_before_ends_as_it_is_met_again(make: RigMaker) -> None:
    """It does not wait for its patience to end."""
    with make() as rig:
        rig.sink.pull(rig.source.offer("old"), into=[1])
        assert rig.arrive() == []
        rig.restart(rig)
        name = begin(rig, "new")
        ends = {one.ticket_id: one.error for one in within_patience(rig, 2)}
        assert ends.pop(name) is None
        (error,) = ends.values()
        assert isinstance(error, PeerUnreachable)
