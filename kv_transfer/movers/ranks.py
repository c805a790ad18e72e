"""Combines the movers of a node's ranks: a read is over when each rank's part of it is.

Each rank reads into its own region, from the agent of each of the source's ranks that has some
of its heads (blocks/rank_split.py). To the mover of one rank, each rank of a source is a peer
with one region and its own address.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from kv_transfer.blocks.rank_split import split_by_rank
from kv_transfer.errors import PeerUnreachable, TransferError
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import Interest, Mover, ReadEnd
from kv_transfer.wire import Welcome


@dataclass(slots=True)
class _SplitRead:
    """A read of which `left` parts are in flight."""

    read_id: int
    left: int
    error: TransferError | None = None


@dataclass(slots=True)
class RanksMover:
    """One mover for each rank, this process's first. Owns them."""

    movers: Sequence[Mover]
    _met: dict[Address, int] = field(default_factory=dict)  # how many agents a peer has
    # by the number of a part, which is negative
    _wholes: dict[int, _SplitRead] = field(default_factory=dict)
    _num_parts: int = 0
    _failed: list[ReadEnd] = field(default_factory=list)

    @property
    def card(self) -> bytes:
        """The first rank's; the others' are announced beside it."""
        return self.movers[0].card

    @property
    def needs_polling(self) -> bool:
        """Whether any of the movers does."""
        return any(mover.needs_polling for mover in self.movers)

    @property
    def pending(self) -> bool:
        """Whether any of the movers is, or a read failed before it began."""
        return bool(self._failed) or any(mover.pending for mover in self.movers)

    @property
    def interests(self) -> Mapping[int, Interest]:
        """Those of all movers."""
        return {fd: what for mover in self.movers for fd, what in mover.interests.items()}

    def connect(self, address: Address, welcome: Welcome) -> None:
        """Connect each of our ranks to each of theirs."""
        self.disconnect(address)
        agents = len(welcome.cards)
        if not agents or agents != len(welcome.regions):
            told = f"{agents} cards for {len(welcome.regions)} ranks"
            raise PeerUnreachable(f"{address}: {told}")
        self._met[address] = agents
        for rank in range(agents):
            alone = _rank_of(welcome, rank)
            for mover in self.movers:
                mover.connect(address_of(address, rank), alone)

    def disconnect(self, address: Address) -> None:
        """Disconnect from all ranks of the peer."""
        for rank in range(self._met.pop(address, 0)):
            for mover in self.movers:
                mover.disconnect(address_of(address, rank))

    def read(self, order: ReadOrder) -> None:
        """Read in parts, one for each pair of ranks."""
        agents = self._met.get(order.address, 0)
        if agents <= 1 and len(self.movers) == 1:
            self.movers[0].read(order)  # unchanged, under its own number
            return
        parts = split_by_rank(order.cut, len(self.movers))
        if any(theirs >= agents for _, theirs in parts):
            error = PeerUnreachable(f"{order.address} was never met, or has fewer ranks")
            self._failed.append((order.read_id, error))
            return
        whole = _SplitRead(order.read_id, len(parts))
        for (ours, theirs), cut in parts.items():
            self._num_parts += 1
            self._wholes[-self._num_parts] = whole
            at = address_of(order.address, theirs)
            number = -self._num_parts
            part = replace(order, read_id=number, address=at, checks=(), cut=cut)
            self.movers[ours].read(part)

    def poll(self) -> Sequence[ReadEnd]:
        """Reads of which every part has ended: none writes to our memory any more."""
        ended, self._failed = self._failed, []
        for mover in self.movers:
            for number, error in mover.poll():
                whole = self._wholes.pop(number, None) or _SplitRead(number, 1)
                whole.left -= 1
                whole.error = whole.error or error
                if not whole.left:
                    ended.append((whole.read_id, whole.error))
        return ended

    def stalled_sources(self) -> Collection[Address]:
        """Peers with a rank for which any mover reports this."""
        waited = {at for mover in self.movers for at in mover.stalled_sources()}
        return {
            address
            for address, count in self._met.items()
            if waited.intersection(address_of(address, rank) for rank in range(count))
        }

    def close(self) -> None:
        """Close all movers."""
        for mover in self.movers:
            mover.close()


def address_of(address: Address, rank: int) -> Address:
    """The address that stands for one rank of a peer; rank 0 has the peer's own."""
    host, port = address
    return (f"{host} rank {rank}", port) if rank else address


def agent_name(engine_id: str, rank: int) -> str:
    """The name of one rank's agent; rank 0 has the engine's id."""
    return f"{engine_id}/{rank}" if rank else engine_id


def _rank_of(welcome: Welcome, rank: int) -> Welcome:
    """The Welcome of one rank, as if it were alone."""
    return msgspec.structs.replace(
        welcome,
        engine_id=agent_name(welcome.engine_id, rank),
        regions=welcome.regions[rank : rank + 1],
        cards=welcome.cards[rank : rank + 1],
    )
