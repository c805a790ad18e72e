"""The NIXL mover: one-sided reads through UCX, from DRAM or device memory.

The passive side does nothing if UCX has a shared-memory or RDMA path; over plain TCP its agent
must be polled, which `poll` also does. NIXL's own progress thread is not used, because it
spins. NIXL cannot stop a transfer: once its remote agent or its handle is released, NIXL
reports it as over while UCX still writes. So a source is released only after its last transfer
has ended.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kv_transfer.blocks.runs import BlockRuns
from kv_transfer.errors import PeerUnreachable, TransferCancelled, UnusableMemory
from kv_transfer.identity import this_machine
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.descriptors import (
    PIECE_BYTES,
    Numbers,
    Rows,
    blocks_of,
    device_of,
    numbers_of,
    pieces,
    rows_in,
)
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.movers.nixl_build import FAILURES, start_agent
from kv_transfer.movers.nixl_reads import (
    NixlRead,
    NixlSource,
    Transfer,
    TransferMaker,
    has_ended,
    note_connected,
)
from kv_transfer.movers.nixl_staging import StagingPool
from kv_transfer.movers.nixl_transports import choose_transports
from kv_transfer.movers.spans import both_sides
from kv_transfer.movers.staging import StagedRead
from kv_transfer.regions import Region, RemoteRegion
from kv_transfer.wire import Welcome

if TYPE_CHECKING:
    from nixl_cu12._api import nixl_agent, nixl_prepped_dlist_handle

OURS = "NIXL_INIT_AGENT"  # NIXL's name for the initiating side
AGAIN_S = 0.02  # before a source is asked for help again
POSTING_S = 0.01  # where the CPU copies, starting a transfer takes as long as its bytes


@dataclass(slots=True)
class NixlMover:
    """One agent with our regions registered.

    `poll` starts pieces of all reads in turn, for POSTING_S: a long read delays no other.
    """

    agent: "nixl_agent"
    regions: Sequence[Region]
    blocks: "nixl_prepped_dlist_handle"
    machine: str = field(default_factory=this_machine)
    clock: Callable[[], float] = time.monotonic
    _peers: dict[Address, NixlSource] = field(default_factory=dict)
    _reads: deque[NixlRead] = field(default_factory=deque)
    _leaving: list[NixlSource] = field(default_factory=list)  # disconnected, but not released
    landings: StagingPool | None = None

    @classmethod
    def start(cls, engine_id: str, regions: Sequence[Region]) -> "NixlMover":
        """Create the agent; raises UnusableConnector or UnusableMemory."""
        choose_transports(regions, os.environ)
        return cls.over(start_agent(engine_id), regions)

    @classmethod
    def over(cls, agent: "nixl_agent", regions: Sequence[Region]) -> "NixlMover":
        """Register all regions; raises UnusableMemory if the agent refuses one.

        UCX itself makes the device's operations on registered memory synchronous.
        """
        for region in regions:
            size = region.block_bytes * region.num_blocks
            kind, index = device_of(region)
            try:
                agent.register_memory([(region.address, size, index, "")], kind)
            except FAILURES as error:
                told = f"NIXL does not take the memory of {region.device} ({error!r})"
                raise UnusableMemory(f"{told}: is its UCX built for this CUDA?") from error
        on_device = len(regions) == 1 and regions[0].device != "cpu"
        landings = StagingPool(agent, regions[0].device) if on_device else None
        return cls(agent, regions, _prepare(agent, OURS, regions), landings=landings)

    @property
    def card(self) -> bytes:
        """The agent's metadata."""
        return bytes(self.agent.get_agent_metadata())

    @property
    def needs_polling(self) -> bool:
        """NIXL agents have no thread of their own here."""
        return True

    @property
    def pending(self) -> bool:
        """True while there are reads: nothing else advances them."""
        return bool(self._reads)

    @property
    def interests(self) -> Mapping[int, int]:
        """NIXL has no file descriptor to wait for."""
        return {}

    def connect(self, address: Address, welcome: Welcome) -> None:
        """Load the peer's metadata; a peer that restarted counts as a different one."""
        self.disconnect(address)
        if len(welcome.cards) != 1:
            raise PeerUnreachable(f"{address}: one rank expected, {len(welcome.cards)} offered")
        left = [peer for peer in self._leaving if peer.agent == welcome.engine_id]
        # loading it again would hide its unfinished transfers from NIXL
        self._peers[address] = left[0] if left else self._load(address, welcome)
        self._leaving = [peer for peer in self._leaving if peer not in left]

    def disconnect(self, address: Address) -> None:
        """Drop the peer's metadata, once its transfers in flight have ended by themselves."""
        for read in self._reads:
            if read.order.address == address and read.waiting:
                read.fail(TransferCancelled())
        if peer := self._peers.pop(address, None):
            self._leaving.append(peer)
            self._forget()

    def _load(self, address: Address, welcome: Welcome) -> NixlSource:
        try:
            name = _text(self.agent.add_remote_agent(welcome.cards[0]))
            blocks = _prepare(self.agent, name, welcome.regions)
        except FAILURES as error:
            raise PeerUnreachable(f"{address}: {error!r}") from error
        return NixlSource(name, welcome.regions, blocks, welcome.machine == self.machine)

    def _forget(self) -> None:
        """Release peers that were disconnected and have no transfer in flight."""
        busy = [read.peer for read in self._reads if read.begun]
        for peer in [one for one in self._leaving if one not in busy]:
            self._leaving.remove(peer)
            with suppress(*FAILURES):  # it may be gone already
                peer.blocks.release()
                self.agent.remove_remote_agent(peer.agent)

    def read(self, order: ReadOrder) -> None:
        """Queue all runs and regions in pieces, which `poll` starts."""
        read = NixlRead(order, self._peers.get(order.address))
        try:
            read.waiting.extend(self._pieces(order))
        except IndexError as error:
            read.fail(PeerUnreachable(repr(error)))
        self._reads.append(read)

    def poll(self) -> Sequence[ReadEnd]:
        """Advance our reads; if there are none, the agent makes progress for its peers."""
        if not self._reads:
            self.agent.get_new_notifs()
        self._begin()
        for read in self._reads:
            read.begun = [one for one in read.begun if not self._is_over(read, one)]
        over = [read for read in self._reads if not (read.begun or read.waiting)]
        if over:
            note_connected(over)
            self._reads = deque(read for read in self._reads if read.begun or read.waiting)
        self._forget()
        return [(read.order.read_id, read.error) for read in over]

    def stalled_sources(self) -> Collection[Address]:
        """Sources of reads that stall. Where the CPU or an adapter copies, a piece ends in
        milliseconds, so a stalled read from this machine means that memory is not shared.
        """
        now = self.clock()
        late = [read for read in self._reads if read.begun and read.patience <= now]
        for read in late:
            read.patience = now + AGAIN_S
            if read.peer and read.peer.connected:
                read.peer.shares_memory = False
        return {read.order.address for read in late}

    def close(self) -> None:
        """Disconnect the peers; the memory is released with the agent."""
        for address in list(self._peers):
            self.disconnect(address)
        self.blocks.release()

    def _pieces(self, order: ReadOrder) -> Iterator[TransferMaker]:
        peer = self._peers.get(order.address)
        if peer is None:
            raise IndexError(f"{order.address} was never met")
        if order.cut.pieces:
            there, here = both_sides(order, peer.regions, self.regions)
            landed = [] if self.landings is None else self.landings.parcels(there, here)
            if landed:
                yield from (partial(self._by_landing, peer, one) for one in landed)
                return
            rows = pieces(rows_in(here, self.regions), rows_in(there, peer.regions))
            yield from (partial(self._by_address, peer, *pair) for pair in rows)
            return
        runs = BlockRuns.of(order.runs)
        ours = numbers_of(self.regions, runs.ours, runs.counts)
        theirs = numbers_of(peer.regions, runs.theirs, runs.counts)
        step = max(1, PIECE_BYTES // max(region.block_bytes for region in self.regions))
        for first in range(0, len(ours), step):
            some = slice(first, first + step)
            yield partial(self._by_number, peer, ours[some], theirs[some])

    def _by_number(self, peer: NixlSource, ours: Numbers, theirs: Numbers) -> Transfer:
        """Read whole blocks, which were prepared."""
        make = self.agent.make_prepped_xfer
        return Transfer(make("READ", self.blocks, ours, peer.blocks, theirs))

    def _by_landing(self, peer: NixlSource, parcel: StagedRead) -> Transfer | None:
        """Read contiguous ranges of theirs into a staging slot, to be taken apart here."""
        assert self.landings is not None
        landing = self.landings.take(parcel)
        if landing is None:
            return None
        try:
            there = rows_in(parcel.there, peer.regions)
            made = self._by_address(peer, self.landings.rows(landing), there)
        except FAILURES:
            landing.arrived(wanted=False)
            raise
        return Transfer(made.handle, landing)

    def _by_address(self, peer: NixlSource, ours: Rows, theirs: Rows) -> Transfer:
        """Read parts of blocks."""
        local = self.agent.get_xfer_descs(ours, device_of(self.regions[0])[0])
        remote = self.agent.get_xfer_descs(theirs, device_of(peer.regions[0])[0])
        return Transfer(self.agent.initialize_xfer("READ", local, remote, peer.agent))

    def _begin(self) -> None:
        """Start waiting pieces, one of each read in turn, for at most POSTING_S."""
        late = self.clock() + POSTING_S
        while waiting := [read for read in self._reads if read.waiting]:
            moved = False
            for read in waiting:
                moved |= self._post(read)
                if self.clock() >= late:
                    self._reads.rotate(-1 - self._reads.index(read))
                    return
            if not moved:
                return

    def _post(self, read: NixlRead) -> bool:
        """Start one piece, which may be over when this returns; False if there was no room."""
        try:
            made = read.waiting[0]()
            if made is None:
                return False
            read.waiting.popleft()
            read.begun.append(made)
            self.agent.transfer(made.handle)
            read.be_patient(self.clock())
        except FAILURES as error:
            read.fail(PeerUnreachable(repr(error)))
        return True

    def _is_over(self, read: NixlRead, transfer: Transfer) -> bool:
        """Whether this transfer writes nothing more."""
        landing = transfer.landing
        if landing is not None and landing.under_way:
            return landing.is_over()
        if not has_ended(self.agent, read, transfer.handle):
            return False
        read.be_patient(self.clock())
        return landing is None or landing.arrived(wanted=read.error is None)


def _prepare(
    agent: "nixl_agent", name: str, regions: Sequence[Region] | Sequence[RemoteRegion]
) -> "nixl_prepped_dlist_handle":
    """Prepare all blocks once, so that transfers can name them cheaply by number."""
    rows = np.concatenate([blocks_of(region) for region in regions])
    return agent.prep_xfer_dlist(name, rows, device_of(regions[0])[0])


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
