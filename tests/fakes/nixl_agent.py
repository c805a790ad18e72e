"""An agent of NIXL's that keeps what it is asked to begin, and a mover over it."""

from collections.abc import Callable
from dataclasses import dataclass, field

import nixl_cu12._bindings as bindings

from engine.api import KvRegion
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.descriptors import PIECE_BYTES, Numbers, Rows
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.movers.nixl import NixlMover
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
    refusal: Exception | None = None

    def release(self) -> None:
        assert not self.released
        if self.refusal is not None:
            raise self.refusal
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
    removed: list[str] = field(default_factory=list)
    helped: int = 0  # turns of peers' reads

    def add_remote_agent(self, card: bytes) -> str:
        if not card:
            raise bindings.nixlMismatchError("no metadata")
        self.peers += 1
        return f"{card.decode()}-{self.peers}"

    def remove_remote_agent(self, name: str) -> None:
        self.removed.append(name)

    def get_new_notifs(self) -> None:
        self.helped += 1

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

    def read(self, number: int, first: int, count: int, at: Address = AT) -> None:
        """Ask for it, and look for the first time."""
        self.mover.read(ReadOrder(number, at, [BlockRun(first, first, count)]))
        self.news += self.mover.poll()

    def meet(
        self,
        engine_id: str = "engine",
        at: Address = AT,
        cards: tuple[bytes, ...] = (b"peer",),
    ) -> None:
        theirs = RemoteRegion(THEIRS, PIECE_BYTES, BLOCKS, "cpu")
        layout = KvLayout("bytes", 1, 1, (PIECE_BYTES,))
        self.mover.connect(at, Welcome(engine_id, "same", layout, (theirs,), cards, self.where))

    @classmethod
    def met(cls) -> "Rig":
        """One that has met its source."""
        agent, now = Agent(), [0.0]
        regions = [KvRegion(OURS, PIECE_BYTES, BLOCKS, "cpu")]
        blocks, clock = Blocks("ours"), lambda: now[0]
        mover = NixlMover(agent, regions, blocks, "here", clock)  # type: ignore[arg-type]
        one = cls(agent, mover, now)
        one.meet()
        return one

    @property
    def begun(self) -> list[int]:
        """The first block of each transfer."""
        return [handle.first for handle in self.agent.begun]
