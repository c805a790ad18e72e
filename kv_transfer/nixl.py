"""The NIXL mover: one-sided reads through UCX, from DRAM or device memory.

The passive side does nothing where UCX has a shared-memory or RDMA path; over plain TCP its
agent must be polled, which `poll` does too. NIXL's own progress thread stays off: it spins.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import nixl_cu12._bindings as bindings
import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config, nixl_xfer_handle

from kv_transfer.errors import PeerUnreachable, TransferError
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.ledger.sources import Address
from kv_transfer.mover import ReadEnd
from kv_transfer.regions import Region, RemoteRegion, Run
from kv_transfer.wire import Welcome

CPU_TRANSPORTS = "tcp,sm"
FAILURES = (
    bindings.nixlBackendError,
    bindings.nixlCancelledError,
    bindings.nixlInvalidParamError,
    bindings.nixlMismatchError,
    bindings.nixlNotAllowedError,
    bindings.nixlNotFoundError,
    bindings.nixlNotPostedError,
    bindings.nixlNotSupportedError,
    bindings.nixlRemoteDisconnectError,
    bindings.nixlRepostActiveError,
    bindings.nixlUnknownError,
)


@dataclass(frozen=True, slots=True)
class _Peer:
    agent: str
    regions: Sequence[RemoteRegion]


@dataclass(slots=True)
class NixlMover:
    """One agent with our regions registered."""

    agent: nixl_agent
    regions: Sequence[Region]
    _peers: dict[Address, _Peer] = field(default_factory=dict)
    _reads: dict[int, nixl_xfer_handle] = field(default_factory=dict)
    _ended: list[ReadEnd] = field(default_factory=list)

    @classmethod
    def start(cls, engine_id: str, regions: Sequence[Region]) -> "NixlMover":
        """Create the agent; without a device and without a choice, UCX stays on this CPU."""
        if all(region.device == "cpu" for region in regions):
            os.environ.setdefault("UCX_TLS", CPU_TRANSPORTS)
        config = nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        agent = nixl_agent(engine_id, config)
        for region in regions:
            size = region.block_bytes * region.num_blocks
            kind, index = _memory(region.device)
            agent.register_memory([(region.address, size, index, "")], kind)
        return cls(agent, regions)

    @property
    def card(self) -> bytes:
        """The agent's metadata."""
        return bytes(self.agent.get_agent_metadata())

    @property
    def driven(self) -> bool:
        """NIXL agents have no thread of their own here."""
        return True

    @property
    def pending(self) -> bool:
        """Nobody else drives our reads."""
        return bool(self._reads or self._ended)

    @property
    def interests(self) -> Mapping[int, int]:
        """NIXL has nothing to wait on."""
        return {}

    def meet(self, address: Address, welcome: Welcome) -> None:
        """Load the peer's metadata; one that restarted is another peer."""
        self.part(address)
        if len(welcome.cards) != 1:
            raise PeerUnreachable(f"{address}: one rank expected, {len(welcome.cards)} offered")
        try:
            name = self.agent.add_remote_agent(welcome.cards[0])
        except FAILURES as error:
            raise PeerUnreachable(f"{address}: {error!r}") from error
        self._peers[address] = _Peer(_text(name), welcome.regions)

    def part(self, address: Address) -> None:
        """Drop the peer's metadata; what is under way ends by itself."""
        if peer := self._peers.pop(address, None):
            try:
                self.agent.remove_remote_agent(peer.agent)
            except FAILURES:
                return  # it is gone already, which is all we want

    def read(self, order: ReadOrder) -> None:
        """Post one transfer for all runs and regions."""
        try:
            handle = self._post(order)
        except (*FAILURES, IndexError) as error:
            self._ended.append((order.read_id, PeerUnreachable(repr(error))))
        else:
            self._reads[order.read_id] = handle

    def poll(self) -> Sequence[ReadEnd]:
        """Drive our reads; without any, the agent makes progress for its peers."""
        if not self._reads:
            self.agent.get_new_notifs()
        for read_id, handle in list(self._reads.items()):
            self._check(read_id, handle)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Forget the peers; the memory is let go with the agent."""
        for address in list(self._peers):
            self.part(address)

    def _post(self, order: ReadOrder) -> nixl_xfer_handle:
        peer = self._peers.get(order.address)
        if peer is None:
            raise IndexError(f"{order.address} was never met")
        ours = _descriptors(self.regions, [(run.ours, run) for run in order.runs])
        theirs = _descriptors(peer.regions, [(run.theirs, run) for run in order.runs])
        local = self.agent.get_xfer_descs(ours, _memory(self.regions[0].device)[0])
        remote = self.agent.get_xfer_descs(theirs, _memory(peer.regions[0].device)[0])
        handle = self.agent.initialize_xfer("READ", local, remote, peer.agent)
        self.agent.transfer(handle)
        return handle

    def _check(self, read_id: int, handle: nixl_xfer_handle) -> None:
        error: TransferError | None = None
        try:
            state = self.agent.check_xfer_state(handle)
        except FAILURES as failure:
            state, error = "ERR", PeerUnreachable(repr(failure))
        if state == "PROC":
            return
        if state == "ERR" and error is None:
            error = PeerUnreachable("the transfer failed")
        del self._reads[read_id]
        handle.release()
        self._ended.append((read_id, error))


def _descriptors(
    regions: Sequence[Region] | Sequence[RemoteRegion], runs: Sequence[tuple[int, Run]]
) -> np.ndarray:
    """[regions * runs, 3]: address, bytes, device index."""
    rows = [
        (
            _span(region, first, run.count),
            run.count * region.block_bytes,
            _memory(region.device)[1],
        )
        for region in regions
        for first, run in runs
    ]
    return np.array(rows, dtype=np.uint64)


def _span(region: Region | RemoteRegion, first: int, count: int) -> int:
    region.at(first + count - 1)  # raises for what does not lie inside
    return region.at(first)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _memory(device: str) -> tuple[str, int]:
    """NIXL's name of the memory kind, and the device's index."""
    kind, _, index = device.partition(":")
    return ("DRAM", 0) if kind == "cpu" else ("VRAM", int(index or 0))
