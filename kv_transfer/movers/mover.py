"""How bytes get from another node's memory into ours: the part that connectors differ in."""

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
    """Reads from peers it has met.

    All calls come from one thread and none of them waits.
    """

    def connect(self, address: Address, welcome: Welcome) -> None:
        """Get ready to read from this peer; raises TransferError."""

    def disconnect(self, address: Address) -> None:
        """Forget a peer; reads from it that are under way end with an error."""

    def read(self, order: ReadOrder) -> None:
        """Start a read; its end is told by `poll`, also where it fails at once."""

    def poll(self) -> Sequence[ReadEnd]:
        """Make progress, for peers too, and tell which reads ended since the last call."""

    def stalled_sources(self) -> Collection[Address]:
        """Peers whose `poll` may help a read of ours now; told again while it may."""


class Mover(KvReader, Protocol):
    """A reader whose own memory can be read by those who have its card."""

    @property
    def card(self) -> bytes:
        """What a peer needs to reach our memory."""

    @property
    def needs_polling(self) -> bool:
        """Whether peers that read from us may need our `poll`, and nothing announces them."""

    @property
    def pending(self) -> bool:
        """Whether reads of ours are under way that only `poll` brings on; call it often."""

    @property
    def interests(self) -> Mapping[int, Interest]:
        """File descriptors that announce work for `poll`, with select.poll's events."""

    def close(self) -> None:
        """Let go of memory and sockets."""


@dataclass(slots=True)
class ReaderWrapper:
    """Another reader, and does as that one does: for those who see or change a part of it."""

    mover: KvReader

    def connect(self, address: Address, welcome: Welcome) -> None:
        """As the reader does, here and below."""
        self.mover.connect(address, welcome)

    def disconnect(self, address: Address) -> None:
        """See KvReader, here and below."""
        self.mover.disconnect(address)

    def read(self, order: ReadOrder) -> None:
        """Begin."""
        self.mover.read(order)

    def poll(self) -> Sequence[ReadEnd]:
        """Make progress."""
        return self.mover.poll()

    def stalled_sources(self) -> Collection[Address]:
        """Who may help."""
        return self.mover.stalled_sources()


@dataclass(slots=True)
class MoverWrapper(ReaderWrapper):
    """Another mover, and does as that one does: with its own memory."""

    mover: Mover

    @property
    def card(self) -> bytes:
        """As the mover's."""
        return self.mover.card

    @property
    def needs_polling(self) -> bool:
        """As the mover's."""
        return self.mover.needs_polling

    @property
    def pending(self) -> bool:
        """As the mover's."""
        return self.mover.pending

    @property
    def interests(self) -> Mapping[int, Interest]:
        """As the mover's."""
        return self.mover.interests

    def close(self) -> None:
        """As the mover does."""
        self.mover.close()
