"""Looking at what was read takes turns with everything else that the transfer thread does."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from engine.api import KvRegion
from kv_transfer.blocks.mapping import BlockMapping, MappedPiece
from kv_transfer.checking import CheckLevel
from kv_transfer.errors import CorruptKv, PeerUnreachable
from kv_transfer.integrity.checked import CheckedMover
from kv_transfer.integrity.checksums import BYTES_AT_ONCE, BlockChecksums
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import ReadEnd
from kv_transfer.regions import BlockRun
from tests.fakes.mover import FakeMover

BLOCK, BLOCKS = 1 << 20, 40
TURNS = -(-BLOCK * BLOCKS // BYTES_AT_ONCE)


@dataclass
class Ended(FakeMover):
    """Reads end when the test says so."""

    ended: list[ReadEnd] = field(default_factory=list)

    def poll(self) -> list[ReadEnd]:
        ended, self.ended = self.ended, []
        return ended


class Rig:
    """Blocks of ours, and an order for all of them; `wrong` ones have another checksum."""

    def __init__(self, *wrong: int) -> None:
        self.memory = np.zeros((BLOCKS, BLOCK), dtype=np.uint8)
        region = KvRegion(self.memory.ctypes.data, BLOCK, BLOCKS, "cpu")
        self.sums, self.inner = BlockChecksums([region]), Ended()
        self.mover = CheckedMover(self.inner, self.sums)
        told = self.sums.of(range(BLOCKS), CheckLevel.FULL)
        checks = [(CheckLevel.FULL, one + (block in wrong)) for block, one in enumerate(told)]
        self.mover.read(ReadOrder(7, ("host", 1), [BlockRun(0, 0, BLOCKS)], checks))

    def polls(self) -> tuple[int, ReadEnd]:
        """How many it took, and what came of it."""
        for count in range(1, 2 * BLOCKS):
            if ended := list(self.mover.poll()):
                return count, ended[0]
        raise AssertionError("it never ends")


def test_a_long_read_is_looked_at_in_slices() -> None:
    rig = Rig()
    rig.inner.ended = [(7, None)]
    assert list(rig.mover.poll()) == []
    assert rig.mover.pending  # call again, and soon
    assert rig.polls() == (TURNS - 1, (7, None))
    assert not rig.mover.pending
    assert not rig.mover._orders, "nothing is kept of a read that is over"


@pytest.mark.parametrize("block", [0, 20, BLOCKS - 1])
def test_what_is_wrong_is_told_as_soon_as_it_is_seen(block: int) -> None:
    rig = Rig(block)
    rig.inner.ended = [(7, None)]
    count, (_, error) = rig.polls()
    assert isinstance(error, CorruptKv)
    assert str(error).startswith(f"block {block} ")
    assert count == 1 + block * BLOCK // BYTES_AT_ONCE


def test_a_read_that_failed_is_not_looked_at() -> None:
    rig, error = Rig(0), PeerUnreachable("gone")
    rig.inner.ended = [(7, error)]
    assert rig.polls() == (1, (7, error))


def test_blocks_are_looked_at_whatever_their_levels_are() -> None:
    """A source that wants less may have told of some of them before it knew."""
    rig, runs = Rig(), [BlockRun(0, 0, 2)]
    (right,) = rig.sums.of([0], CheckLevel.SAMPLED)
    checks = [(CheckLevel.SAMPLED, right), (CheckLevel.FULL, 1)]
    for read_id, told in ((8, checks), (9, checks[::-1])):
        rig.mover.read(ReadOrder(read_id, ("host", 1), runs, told))
        rig.inner.ended = [(read_id, None)]
        _, (_, error) = rig.polls()
        assert isinstance(error, CorruptKv)


def test_pieces_are_compared_as_they_are_at_their_source() -> None:
    """Here the second half of each block comes first."""
    theirs = np.arange(2 * 8, dtype=np.uint8).reshape(2, 2, 4)
    memory = theirs[:, ::-1].copy()
    sums = BlockChecksums([KvRegion(memory.ctypes.data, 8, 2, "cpu")])
    pieces = MappedPiece(0, 0, 0, 4, 4), MappedPiece(0, 0, 4, 0, 4)
    checks = [(CheckLevel.FULL, xxh3_64_intdigest(block.tobytes())) for block in theirs]
    for damage in (False, True):
        inner = Ended()
        mover = CheckedMover(inner, sums)
        cut = BlockMapping(1, 1, 8, 8, pieces)
        mover.read(ReadOrder(7, ("host", 1), [BlockRun(0, 0, 2)], checks, cut))
        memory[1, 0, 0] += damage
        inner.ended = [(7, None)]
        ((_, error),) = mover.poll()
        assert isinstance(error, CorruptKv) is damage
