"""A mover that meets whom it is told to, and reads nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.wire import Welcome


@dataclass
class FakeMover:
    """Remembers whom it met and from whom it parted; `meeting` is called while it meets."""

    pending: bool = False
    needs_polling: bool = False
    card: bytes = b"card"
    interests: Mapping[int, int] = field(default_factory=dict)
    parted: list[Address] = field(default_factory=list)
    met: list[Address] = field(default_factory=list)
    meeting: Callable[[Address], None] = lambda _: None

    def connect(self, address: Address, welcome: Welcome) -> None:
        self.meeting(address)
        self.met.append(address)

    def disconnect(self, address: Address) -> None:
        self.parted.append(address)

    def read(self, order: ReadOrder) -> None:
        """Nothing is read."""

    def poll(self) -> Sequence[ReadEnd]:
        return []

    def stalled_sources(self) -> Collection[Address]:
        return ()

    def close(self) -> None:
        """Nothing to let go of."""
