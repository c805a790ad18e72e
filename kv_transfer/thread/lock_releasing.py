"""Releases the lock of the books, which the transfer thread holds, during slow calls.

A mover may take long, and so may ranks that compute checksums; `sweep`, in its own thread, can
work on the books meanwhile (service.py).
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kv_transfer.blocks.checksums import Checksums
from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import ReadEnd, ReaderWrapper
from kv_transfer.wire import Welcome


@contextlib.contextmanager
def _released(lock: threading.Lock) -> Iterator[None]:
    """Release a lock that the caller holds, and acquire it again afterwards."""
    lock.release()
    try:
        yield
    finally:
        lock.acquire()


@dataclass(slots=True)
class LockReleasingReader(ReaderWrapper):
    """Releases the books' lock while the mover works."""

    lock: threading.Lock

    def connect(self, address: Address, welcome: Welcome) -> None:
        """See KvReader, here and below."""
        with _released(self.lock):
            self.mover.connect(address, welcome)

    def disconnect(self, address: Address) -> None:
        """Closing a link may take long."""
        with _released(self.lock):
            self.mover.disconnect(address)

    def read(self, order: ReadOrder) -> None:
        """Starting a read may take long."""
        with _released(self.lock):
            self.mover.read(order)

    def poll(self) -> Sequence[ReadEnd]:
        """Making progress may take long."""
        with _released(self.lock):
            return self.mover.poll()


@dataclass(frozen=True, slots=True)
class LockReleasingChecksums:
    """Releases the books' lock while checksums are computed.

    Blocks whose offer ends meanwhile may hold anything, but no sink is told about them any
    more.
    """

    sums: Checksums
    lock: threading.Lock

    @property
    def blocks_at_once(self) -> int:
        """See Checksums, here and below."""
        return self.sums.blocks_at_once

    def of(self, blocks: Sequence[int], level: CheckLevel) -> list[int]:
        """Other ranks may take long to answer."""
        with _released(self.lock):
            return self.sums.of(blocks, level)

    def of_pieces(
        self, cut: BlockMapping, slots: Sequence[Sequence[int]], level: CheckLevel
    ) -> list[int]:
        """See `of`."""
        with _released(self.lock):
            return self.sums.of_pieces(cut, slots, level)
