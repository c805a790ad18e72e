"""What is compared after a read in pieces: every slot that came, whatever block it is of."""

from kv_transfer.blocks.cutting import Cut, Piece
from kv_transfer.checking import Level
from kv_transfer.integrity.checked import expected
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.regions import Run

HALVES = Cut(2, 1, 4, 4, (Piece(0, 0, 0, 0, 4),))


def compared(*runs: Run) -> list[tuple[object, int]]:
    count = sum(run.count for run in runs)
    checks = [(Level.FULL, number) for number in range(count)]
    order = ReadOrder(1, ("host", 1), runs, checks, HALVES)
    return [(place, sum_) for place, (_, sum_) in expected(order)]


def test_halves_are_compared_that_are_alone() -> None:
    assert compared(Run(3, 7, 3)) == [((7,), 0), ((8,), 1), ((9,), 2)]


def test_halves_may_lie_apart_here() -> None:
    assert compared(Run(4, 9, 1), Run(5, 2, 1)) == [((9,), 0), ((2,), 1)]


def test_what_is_read_twice_is_compared_twice() -> None:
    once = Run(2, 5, 1)
    assert compared(once, once) == [((5,), 0), ((5,), 1)]
