"""The NIXL mover over an agent of the test's: what is begun when, and what becomes of it."""

import nixl_cu12._bindings as bindings
import pytest

from kv_transfer.errors import PeerUnreachable, TransferCancelled
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.nixl import AGAIN_S, POSTING_S
from kv_transfer.movers.nixl_reads import STALLED_S
from kv_transfer.regions import BlockRun
from tests.fakes.nixl_agent import AT, BLOCKS, Blocks, Rig

OTHER = ("another", 1)


@pytest.fixture
def rig() -> Rig:
    return Rig.met()


def slow(rig: Rig) -> None:
    """Each transfer takes its thread with it, as where the processor copies."""
    rig.agent.when_begun = lambda: rig.now.__setitem__(0, rig.now[0] + POSTING_S)


def test_a_read_is_over_with_the_last_of_its_pieces(rig: Rig) -> None:
    rig.read(1, 0, 3)
    assert rig.begun == [0, 1, 2]
    assert rig.mover.poll() == []
    assert rig.mover.pending
    rig.agent.begun[0].state = rig.agent.begun[2].state = "DONE"
    assert rig.mover.poll() == []
    rig.agent.end()
    assert rig.mover.poll() == [(1, None)]
    assert all(handle.released for handle in rig.agent.begun)
    assert not rig.mover.pending


def test_a_long_read_leaves_time_for_heartbeats(rig: Rig) -> None:
    slow(rig)
    rig.read(1, 0, 4)
    assert rig.begun == [0]
    rig.mover.poll()
    assert rig.begun == [0, 1]


def test_many_reads_at_once_leave_time_for_heartbeats_too(rig: Rig) -> None:
    slow(rig)
    for number in range(3):
        rig.mover.read(ReadOrder(number, AT, [BlockRun(number, number, 1)]))
    assert rig.begun == []
    rig.mover.poll()
    assert rig.begun == [0]


def test_a_short_read_does_not_wait_for_a_long_one(rig: Rig) -> None:
    slow(rig)
    rig.read(1, 0, 5)
    rig.read(2, 20, 1)
    for _ in range(5):
        rig.mover.poll()
    assert rig.begun[:3] in ([0, 1, 20], [0, 20, 1])
    assert sorted(rig.begun) == [0, 1, 2, 3, 4, 20]


def test_what_waits_is_not_read_from_whom_is_met_next(rig: Rig) -> None:
    """A peer that restarted has other memory at the same address."""
    slow(rig)
    rig.read(1, 0, 4)
    rig.meet()
    assert rig.mover.poll() == []  # the first piece may still be written
    rig.agent.end()
    ((number, error),) = rig.mover.poll()
    assert number == 1
    assert isinstance(error, TransferCancelled)
    assert rig.begun == [0]
    rig.read(2, 7, 1)
    assert [handle.peer for handle in rig.agent.begun] == ["peer-1", "peer-2"]


@pytest.mark.parametrize("state", ["ERR", "LOST"])
def test_a_piece_that_fails_ends_the_read_when_the_others_write_no_more(
    rig: Rig, state: str
) -> None:
    rig.read(1, 0, 2)
    rig.agent.begun[0].state = state
    assert rig.mover.poll() == []
    rig.agent.end()
    ((_, error),) = rig.mover.poll()
    assert isinstance(error, PeerUnreachable)


def test_the_first_error_is_told(rig: Rig) -> None:
    """A link that broke fails all that is read over it; a read that was given up does not."""
    slow(rig)
    rig.read(1, 0, 3)
    rig.mover.disconnect(AT)
    rig.agent.end("ERR")
    ((_, error),) = rig.mover.poll()
    assert isinstance(error, TransferCancelled)


def test_a_piece_that_fails_is_the_last_that_is_begun(rig: Rig) -> None:
    slow(rig)
    rig.read(1, 0, 4)
    rig.agent.end("ERR")
    rig.mover.poll()
    rig.mover.poll()
    assert len(rig.begun) <= 2


def test_a_handle_that_nixl_does_not_release_ends_no_node(rig: Rig) -> None:
    rig.read(1, 0, 2)
    rig.agent.begun[0].refusal = bindings.nixlBackendError("no")
    rig.agent.end()
    assert rig.mover.poll() == [(1, None)]


def test_a_failed_piece_that_nixl_calls_active_may_still_be_written(rig: Rig) -> None:
    rig.read(1, 0, 1)
    (handle,) = rig.agent.begun
    handle.state, handle.refusal = "ERR", bindings.nixlRepostActiveError("active")
    assert rig.mover.poll() == []
    handle.refusal = None
    ((_, error),) = rig.mover.poll()
    assert isinstance(error, PeerUnreachable)


def first_read(rig: Rig) -> None:
    """There is a connection now."""
    rig.read(0, 0, 1)
    rig.agent.end()
    assert rig.mover.poll() == [(0, None)]


def test_the_first_read_makes_a_connection_for_which_its_source_has_to_poll(rig: Rig) -> None:
    rig.read(1, 0, 1)
    assert set(rig.mover.stalled_sources()) == {AT}
    assert not rig.mover.stalled_sources()
    rig.now[0] += AGAIN_S
    assert set(rig.mover.stalled_sources()) == {AT}
    rig.agent.end()
    rig.mover.poll()
    rig.read(2, 0, 1)
    assert not rig.mover.stalled_sources()


def test_a_first_read_that_failed_proves_nothing(rig: Rig) -> None:
    rig.read(1, 0, 1)
    rig.agent.end("ERR")
    rig.mover.poll()
    rig.read(2, 0, 1)
    assert set(rig.mover.stalled_sources()) == {AT}


def test_between_machines_a_source_polls_while_it_is_read_and_no_longer(rig: Rig) -> None:
    """Not for as long as it has something on offer, which is a whole prompt's time."""
    rig.where = "there"
    rig.meet()
    first_read(rig)
    assert not rig.mover.stalled_sources()
    rig.now[0] += 10.0
    rig.read(1, 0, 2)
    assert set(rig.mover.stalled_sources()) == {AT}
    rig.agent.begun[1].state = "DONE"
    assert rig.mover.poll() == []
    assert not rig.mover.stalled_sources()  # it polls as it was asked to
    rig.now[0] += AGAIN_S
    assert set(rig.mover.stalled_sources()) == {AT}
    rig.agent.end()
    rig.mover.poll()
    rig.now[0] += AGAIN_S
    assert not rig.mover.stalled_sources()


def test_one_that_stands_still_shares_no_memory_with_us(rig: Rig) -> None:
    """Two containers of one machine, or UCX_TLS=tcp: each read waited for our next turn."""
    first_read(rig)
    rig.read(1, 0, 2)
    rig.now[0] += STALLED_S / 2
    rig.agent.begun[1].state = "DONE"
    assert rig.mover.poll() == []
    rig.now[0] += STALLED_S / 2
    assert not rig.mover.stalled_sources()  # one piece has ended
    rig.now[0] += STALLED_S
    assert set(rig.mover.stalled_sources()) == {AT}
    rig.agent.end()
    rig.mover.poll()
    rig.now[0] += AGAIN_S
    assert not rig.mover.stalled_sources()
    rig.read(2, 0, 1)
    assert set(rig.mover.stalled_sources()) == {AT}  # at once


def test_blocks_outside_are_told_by_poll(rig: Rig) -> None:
    rig.read(1, BLOCKS - 1, 2)
    ((number, error),) = rig.news
    assert number == 1
    assert isinstance(error, PeerUnreachable)
    assert rig.begun == []


def test_what_was_prepared_for_a_peer_is_let_go_with_it(rig: Rig) -> None:
    (peer,) = rig.mover._peers.values()
    rig.meet()
    (other,) = rig.mover._peers.values()
    assert isinstance(peer.blocks, Blocks)
    assert peer.blocks.released
    assert rig.agent.removed == ["peer-1"]
    rig.mover.close()
    for blocks in (other.blocks, rig.mover.blocks):
        assert isinstance(blocks, Blocks)
        assert blocks.released
    assert rig.agent.removed == ["peer-1", "peer-2"]


def test_a_peer_that_left_amid_a_read_is_let_go_with_the_last_of_its_pieces(rig: Rig) -> None:
    rig.read(1, 0, 2)
    rig.mover.disconnect(AT)
    rig.agent.begun[0].state = "DONE"
    assert rig.mover.poll() == []
    assert rig.agent.removed == []
    rig.agent.end()
    assert rig.mover.poll() == [(1, None)]
    assert rig.agent.removed == ["peer-1"]


def test_what_waits_is_read_although_another_peer_leaves(rig: Rig) -> None:
    slow(rig)
    rig.meet(at=OTHER)
    rig.read(1, 0, 2)
    rig.mover.disconnect(OTHER)
    rig.mover.poll()
    rig.agent.end()
    assert rig.mover.poll() == [(1, None)]
    assert rig.begun == [0, 1]


def test_a_read_that_waits_for_its_turn_does_not_stand_still(rig: Rig) -> None:
    """Its source cannot help, and is not taken for one that shares no memory."""
    first_read(rig)
    slow(rig)
    for number, at in ((1, 0), (2, 9)):
        rig.mover.read(ReadOrder(number, AT, [BlockRun(at, at, 1)]))
    rig.now[0] += AGAIN_S
    assert not rig.mover.stalled_sources()


def test_peers_that_read_from_us_are_helped_whenever_we_read_nothing(rig: Rig) -> None:
    rig.mover.poll()
    assert rig.agent.helped == 1


@pytest.mark.parametrize("cards", [(b"",), (), (b"one", b"two")])
def test_who_cannot_be_met_is_unreachable(rig: Rig, cards: tuple[bytes, ...]) -> None:
    with pytest.raises(PeerUnreachable):
        rig.meet(at=OTHER, cards=cards)
    rig.read(1, 0, 1, OTHER)
    ((_, error),) = rig.news
    assert isinstance(error, PeerUnreachable)


def test_what_nixl_does_not_begin_is_a_read_that_failed(rig: Rig) -> None:
    def refuse() -> None:
        raise bindings.nixlBackendError("no")

    rig.agent.when_begun = refuse
    rig.read(1, 0, 3)
    rig.agent.end("ERR")
    ((_, error),) = [*rig.news, *rig.mover.poll()]
    assert isinstance(error, PeerUnreachable)
    assert rig.begun == [0]


def test_who_is_met_again_amid_a_read_is_neither_loaded_twice_nor_let_go(rig: Rig) -> None:
    rig.read(1, 0, 1)
    rig.meet("peer-1")
    rig.agent.end()
    assert rig.mover.poll() == [(1, None)]
    rig.read(2, 1, 1)
    assert [handle.peer for handle in rig.agent.begun] == ["peer-1", "peer-1"]
    assert rig.agent.peers == 1
