"""What the two ends of a mover in another process say to each other."""

import msgspec
import numpy as np

from kv_transfer.blocks.cutting import Cut
from kv_transfer.blocks.runs import Runs
from kv_transfer.checking import Level
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.ledger.sources import Address
from kv_transfer.regions import RemoteRegion
from kv_transfer.wire import Welcome


class Introduced(msgspec.Struct, frozen=True, tag=True):
    """What peers are told of this rank, and what its mover is like."""

    region: RemoteRegion
    card: bytes
    driven: bool


class Meet(msgspec.Struct, frozen=True, tag=True):
    """See Mover, here and below."""

    address: Address
    welcome: Welcome


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Mover.part."""

    address: Address


class Read(msgspec.Struct, frozen=True, tag=True):
    """Mover.read; runs are three columns of int64."""

    read_id: int
    address: Address
    runs: tuple[bytes, bytes, bytes]
    cut: Cut

    @classmethod
    def of(cls, order: ReadOrder) -> "Read":
        """Without checksums, which are another's to look at."""
        runs = Runs.of(order.runs)
        columns = runs.theirs.tobytes(), runs.ours.tobytes(), runs.counts.tobytes()
        return cls(order.read_id, order.address, columns, order.cut)

    @property
    def order(self) -> ReadOrder:
        """The same again."""
        theirs, ours, counts = (np.frombuffer(one, dtype=np.int64) for one in self.runs)
        return ReadOrder(self.read_id, self.address, Runs(theirs, ours, counts), (), self.cut)


class Sum(msgspec.Struct, frozen=True, tag=True):
    """Sums.of_pieces; without a cut Sums.of, each block alone in its slots."""

    cut: Cut | None
    slots: tuple[tuple[int, ...], ...]
    level: Level


class Drive(msgspec.Struct, frozen=True, tag=True):
    """Mover.poll, for the sake of peers that read from that rank."""


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Are you there? Progress is the answer."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Reads that ended, each with why and in what words; peers to be asked for help."""

    ended: tuple[tuple[int, str | None, str], ...]
    waits_for: tuple[Address, ...]


class Summed(msgspec.Struct, frozen=True, tag=True):
    """What a Sum came to; they come in the order in which they were asked for."""

    sums: tuple[int, ...]


ToMover = Meet | Leave | Read | Sum | Drive | Ask
FromMover = Progress | Summed
