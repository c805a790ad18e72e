"""Runs: consecutive blocks taken together. There may be thousands, so they are in arrays."""

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from kv_transfer.regions import BlockRun

Column = NDArray[np.int64]


class BlockRuns(Sequence[BlockRun]):
    """Runs as three columns, which suits code that reads thousands of them."""

    def __init__(self, theirs: Column, ours: Column, counts: Column) -> None:
        self.theirs, self.ours, self.counts = theirs, ours, counts

    @classmethod
    def of(cls, runs: Sequence[BlockRun]) -> "BlockRuns":
        """The same runs as BlockRuns, whatever type they have."""
        if isinstance(runs, cls):
            return runs
        rows = [(run.theirs, run.ours, run.count) for run in runs]
        return cls(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)

    @property
    def total(self) -> int:
        """The number of blocks, or slots, on either side."""
        return int(self.counts.sum())

    @overload
    def __getitem__(self, index: int) -> BlockRun: ...

    @overload
    def __getitem__(self, index: slice) -> "BlockRuns": ...

    def __getitem__(self, index: int | slice) -> "BlockRun | BlockRuns":
        some = self.theirs[index], self.ours[index], self.counts[index]
        return BlockRuns(*some) if isinstance(index, slice) else BlockRun(*map(int, some))

    def __iter__(self) -> Iterator[BlockRun]:
        return map(BlockRun, self.theirs.tolist(), self.ours.tolist(), self.counts.tolist())

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        return repr(list(self))


def pair_runs(theirs: Sequence[int], ours: Sequence[int]) -> BlockRuns:
    """Pairs of (their block, our block), in order, merged into as few runs as possible."""
    there, here = np.array(theirs, dtype=np.int64), np.array(ours, dtype=np.int64)
    if len(there) < 2:
        return BlockRuns(there, here, np.ones_like(there))
    follows = (np.diff(there) == 1) & (np.diff(here) == 1)
    first = np.flatnonzero(np.concatenate(([True], ~follows)))
    return BlockRuns(there[first], here[first], np.diff(first, append=len(there)))


def merge_runs(firsts: Column, counts: Column) -> list[tuple[int, int]]:
    """The same blocks of one side in the same order, in as few (first, count) as possible."""
    if len(firsts) == 0:
        return []
    begins = np.concatenate(([True], firsts[1:] != firsts[:-1] + counts[:-1]))
    at = np.flatnonzero(begins)
    return list(zip(firsts[at].tolist(), np.add.reduceat(counts, at).tolist(), strict=True))


def expand_runs(firsts: Column, counts: Column) -> Column:
    """Every block of one side, in order."""
    if len(firsts) == 1:
        return np.arange(firsts[0], firsts[0] + counts[0])
    before = np.cumsum(counts) - counts
    return np.repeat(firsts - before, counts) + np.arange(int(counts.sum()))
