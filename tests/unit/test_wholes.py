"""Which of a source's blocks can be compared after a read in pieces."""

from kv_transfer.blocks.cutting import Cut, Piece
from kv_transfer.checking import Level
from kv_transfer.integrity.checked import expected
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.regions import Run

HALVES = Cut(2, 1, 4, 4, (Piece(0, 0, 0, 0, 4),))
CHECKS = [(Level.FULL, 1), (Level.FULL, 2)]


def compared(*runs: Run, checks: int = 2) -> list[tuple[int, ...] | int]:
    order = ReadOrder(1, ("host", 1), runs, CHECKS[:checks], HALVES)
    return [place for place, _ in expected(order)]


def test_blocks_that_begin_or_end_outside_are_left_out() -> None:
    assert compared(Run(3, 7, 6)) == [(8, 9), (10, 11)]


def test_halves_may_lie_apart_here() -> None:
    assert compared(Run(4, 9, 1), Run(5, 2, 1), checks=1) == [(9, 2)]


def test_what_is_read_twice_is_compared_twice() -> None:
    once = Run(2, 5, 3)  # the last half belongs to a block that is not here as a whole
    assert compared(once, once) == [(5, 6), (5, 6)]
    tail_and_head = Run(3, 5, 2)
    assert compared(tail_and_head, tail_and_head, checks=0) == []
