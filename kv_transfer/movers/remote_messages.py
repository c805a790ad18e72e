"""The messages between the two ends of a mover in another process."""

import msgspec
import numpy as np

from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.blocks.runs import BlockRuns
from kv_transfer.checking import CheckLevel
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.regions import RemoteRegion
from kv_transfer.wire import Welcome


class RankIntroduction(msgspec.Struct, frozen=True, tag="Introduced"):
    """What peers need to know of this rank, and whether its mover needs polling."""

    region: RemoteRegion
    card: bytes
    driven: bool


class ConnectCommand(msgspec.Struct, frozen=True, tag="Meet"):
    """Mover.connect."""

    address: Address
    welcome: Welcome


class DisconnectCommand(msgspec.Struct, frozen=True, tag="Leave"):
    """Mover.disconnect."""

    address: Address


class ReadCommand(msgspec.Struct, frozen=True, tag="Read"):
    """Mover.read; runs are three columns of int64."""

    read_id: int
    address: Address
    runs: tuple[bytes, bytes, bytes]
    cut: BlockMapping

    @classmethod
    def of(cls, order: ReadOrder) -> "ReadCommand":
        """Without checksums, which the other end checks."""
        runs = BlockRuns.of(order.runs)
        columns = runs.theirs.tobytes(), runs.ours.tobytes(), runs.counts.tobytes()
        return cls(order.read_id, order.address, columns, order.cut)

    @property
    def order(self) -> ReadOrder:
        """The order again."""
        theirs, ours, counts = (np.frombuffer(one, dtype=np.int64) for one in self.runs)
        return ReadOrder(
            self.read_id, self.address, BlockRuns(theirs, ours, counts), (), self.cut
        )


class ChecksumCommand(msgspec.Struct, frozen=True, tag="Sum"):
    """Checksums.of_pieces; without a cut Checksums.of, each block alone in its slots."""

    cut: BlockMapping | None
    slots: tuple[tuple[int, ...], ...]
    level: CheckLevel


class ProgressCommand(msgspec.Struct, frozen=True, tag="Drive"):
    """Mover.poll, for the sake of peers that read from that rank."""


class Ping(msgspec.Struct, frozen=True, tag="Ask"):
    """Asks for a sign of life; ReadReport is the answer."""


class ReadReport(msgspec.Struct, frozen=True, tag="Progress"):
    """Reads that ended, each with its error's kind and text; sources that need help."""

    ended: tuple[tuple[int, str | None, str], ...]
    waits_for: tuple[Address, ...]


class ChecksumReport(msgspec.Struct, frozen=True, tag="Summed"):
    """The answer to a ChecksumCommand; answers come in the order of the commands."""

    sums: tuple[int, ...]


ToMover = (
    ConnectCommand | DisconnectCommand | ReadCommand | ChecksumCommand | ProgressCommand | Ping
)
FromMover = ReadReport | ChecksumReport
