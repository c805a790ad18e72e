"""The NIXL mover over an agent of the test's: what is begun when, and what becomes of it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import nixl_cu12._bindings as bindings
import pytest

from engine.api import KvRegion
from kv_transfer.errors import PeerUnreachable, TransferCancelled
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.descriptors import PIECE_BYTES, Numbers, Rows
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.movers.nixl import AGAIN_S, POSTING_S, NixlMover
from kv_transfer.movers.nixl_reads import STALLED_S
from kv_transfer.regions import BlockRun, RemoteRegion
from kv_transfer.wire import Welcome

AT, OURS, THEIRS = ("source", 1), 1 << 40, 1 << 41
BLOCKS = 64


@dataclass(eq=False)
class Handle:
    """One transfer, in the state that the test gives it."""

    first: int
    peer: str
    state: str = "PROC"
    released: bool = False

    def release(self) -> None:
        assert not self.released
        self.released = True


@dataclass
class Blocks:
    """A prepared list."""

    name: str
    released: bool = False

    def release(self) -> None:
        assert not self.released
        self.released = True


@dataclass
class Agent:
    """Keeps what it is asked to begin."""

    begun: list[Handle] = field(default_factory=list)
    when_begun: Callable[[], None] = lambda: None
    peers: int = 0

    def add_remote_agent(self, card: bytes) -> str:
        self.peers += 1
        return f"{card.decode()}-{self.peers}"

    def remove_remote_agent(self, name: str) -> None:
        """It was there."""

    def get_new_notifs(self) -> None:
        """There are none."""

    def make_prepped_xfer(
        self, operation: str, ours: Blocks, here: Numbers, theirs: Blocks, there: Numbers
    ) -> Handle:
        assert operation == "READ"
        assert not ours.released
        assert not theirs.released
        assert (here == there).all()
        return Handle(int(here[0]), theirs.name)

    def prep_xfer_dlist(self, name: str, rows: Rows, kind: str) -> Blocks:
        assert kind == "DRAM"
        assert rows.tolist() == [[THEIRS, PIECE_BYTES, 0, PIECE_BYTES, BLOCKS]]
        return Blocks(name)

    def transfer(self, handle: Handle) -> str:
        self.begun.append(handle)
        self.when_begun()
        return handle.state

    def check_xfer_state(self, handle: Handle) -> str:
        assert not handle.released
        if handle.state == "LOST":
            raise bindings.nixlRemoteDisconnectError("gone")
        return handle.state

    def end(self, state: str = "DONE") -> None:
        """All that was begun and is still on its way."""
        for handle in self.begun:
            if handle.state == "PROC":
                handle.state = state


@dataclass
class Rig:
    agent: Agent
    mover: NixlMover
    now: list[float]
    where: str = "here"
    news: list[ReadEnd] = field(default_factory=list)

    def read(self, number: int, first: int, count: int) -> None:
        """Ask for it, and look for the first time."""
        self.mover.read(ReadOrder(number, AT, [BlockRun(first, first, count)]))
        self.news += self.mover.poll()

    def meet(self) -> None:
        theirs = RemoteRegion(THEIRS, PIECE_BYTES, BLOCKS, "cpu")
        layout = KvLayout("bytes", 1, 1, (PIECE_BYTES,))
        self.mover.connect(
            AT, Welcome("engine", "same", layout, (theirs,), (b"peer",), self.where)
        )

    @property
    def begun(self) -> list[int]:
        """The first block of each transfer."""
        return [handle.first for handle in self.agent.begun]


@pytest.fixture
def rig() -> Rig:
    agent, now = Agent(), [0.0]
    regions = [KvRegion(OURS, PIECE_BYTES, BLOCKS, "cpu")]
    blocks, clock = Blocks("ours"), lambda: now[0]
    mover = NixlMover(agent, regions, blocks, "here", clock)  # type: ignore[arg-type]
    one = Rig(agent, mover, now)
    one.meet()
    return one


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


def test_a_piece_that_fails_is_the_last_that_is_begun(rig: Rig) -> None:
    slow(rig)
    rig.read(1, 0, 4)
    rig.agent.end("ERR")
    rig.mover.poll()
    rig.mover.poll()
    assert len(rig.begun) <= 2


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
    ours = rig.mover.blocks
    rig.meet()
    assert isinstance(peer.blocks, Blocks)
    assert peer.blocks.released
    rig.mover.close()
    assert isinstance(ours, Blocks)
    assert ours.released
