"""What is compared after a read in pieces: every slot that came, whatever block it is of."""

from kv_transfer.blocks.mapping import BlockMapping, MappedPiece
from kv_transfer.checking import CheckLevel
from kv_transfer.integrity.checked import expected_checksums
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.regions import BlockRun

HALVES = BlockMapping(2, 1, 4, 4, (MappedPiece(0, 0, 0, 0, 4),))


def compared(*runs: BlockRun) -> list[tuple[object, int]]:
    count = sum(run.count for run in runs)
    checks = [(CheckLevel.FULL, number) for number in range(count)]
    order = ReadOrder(1, ("host", 1), runs, checks, HALVES)
    return [(place, sum_) for place, (_, sum_) in expected_checksums(order)]


def test_halves_are_compared_that_are_alone() -> None:
    assert compared(BlockRun(3, 7, 3)) == [((7,), 0), ((8,), 1), ((9,), 2)]


def test_halves_may_lie_apart_here() -> None:
    assert compared(BlockRun(4, 9, 1), BlockRun(5, 2, 1)) == [((9,), 0), ((2,), 1)]


def test_what_is_read_twice_is_compared_twice() -> None:
    once = BlockRun(2, 5, 1)
    assert compared(once, once) == [((5,), 0), ((5,), 1)]
