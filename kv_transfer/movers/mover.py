"""How bytes get from another node's memory into ours; this is what connectors differ in."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_transfer.errors import TransferError
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.wire import Welcome

ReadEnd = tuple[int, TransferError | None]
Interest = int


class KvReader(Protocol):
    """Reads from peers that it is connected to.

    All calls come from one thread, and none of them blocks.
    """

    def connect(self, address: Address, welcome: Welcome) -> None:
        """Get ready to read from this peer; raises TransferError."""

    def disconnect(self, address: Address) -> None:
        """Forget a peer. Its reads end with an error, except those whose bytes are on the way
        and cannot be stopped; they end later, as if nothing had happened.
        """

    def read(self, order: ReadOrder) -> None:
        """Start a read; `poll` reports its end, even if it fails at once."""

    def poll(self) -> Sequence[ReadEnd]:
        """Make progress, also for peers; returns the reads that ended since the last call."""

    def stalled_sources(self) -> Collection[Address]:
        """Peers whose `poll` may help a read of ours now; repeated for as long as it may."""


class Mover(KvReader, Protocol):
    """A reader whose own memory can be read by peers that have its card."""

    @property
    def card(self) -> bytes:
        """What a peer needs to reach our memory."""

    @property
    def needs_polling(self) -> bool:
        """Whether peers' reads may need our `poll` without anything announcing them."""

    @property
    def pending(self) -> bool:
        """Whether reads of ours are in flight that only `poll` advances; call it often."""

    @property
    def interests(self) -> Mapping[int, Interest]:
        """File descriptors that announce work for `poll`, with the events of select.poll."""

    def close(self) -> None:
        """Release memory and sockets."""


@dataclass(slots=True)
class ReaderWrapper:
    """Wraps a reader and forwards every call, for subclasses that change or observe some."""

    mover: KvReader

    def connect(self, address: Address, welcome: Welcome) -> None:
        """See KvReader, here and below."""
        self.mover.connect(address, welcome)

    def disconnect(self, address: Address) -> None:
        """See KvReader, here and below."""
        self.mover.disconnect(address)

    def read(self, order: ReadOrder) -> None:
        """See KvReader."""
        self.mover.read(order)

    def poll(self) -> Sequence[ReadEnd]:
        """See KvReader."""
        return self.mover.poll()

    def stalled_sources(self) -> Collection[Address]:
        """See KvReader."""
        return self.mover.stalled_sources()


@dataclass(slots=True)
class MoverWrapper(ReaderWrapper):
    """Wraps a mover and forwards every call."""

    mover: Mover

    @property
    def card(self) -> bytes:
        """The wrapped mover's, here and below."""
        return self.mover.card

    @property
    def needs_polling(self) -> bool:
        """See `card`."""
        return self.mover.needs_polling

    @property
    def pending(self) -> bool:
        """See `card`."""
        return self.mover.pending

    @property
    def interests(self) -> Mapping[int, Interest]:
        """See `card`."""
        return self.mover.interests

    def close(self) -> None:
        """Close the wrapped mover."""
        self.mover.close()
