"""Blocks that follow one another, as one: by the thousand, so by arrays.

A call to numpy costs as much as a loop over some dozens; fewer are looped over.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kv_transfer.regions import Run

FEW = 64


def joined(theirs: Sequence[int], ours: Sequence[int]) -> list[Run]:
    """Pairs of (their block, our block), in order, in as few runs as there can be."""
    if len(theirs) < FEW:
        return list(_coalesced(zip(theirs, ours, strict=True)))
    there, here = np.array(theirs, dtype=np.int64), np.array(ours, dtype=np.int64)
    follows = (np.diff(there) == 1) & (np.diff(here) == 1)
    first = np.flatnonzero(np.concatenate(([True], ~follows)))
    counts = np.diff(first, append=len(there))
    return list(map(Run, there[first].tolist(), here[first].tolist(), counts.tolist()))


def merged(firsts: Sequence[int], counts: Sequence[int]) -> list[tuple[int, int]]:
    """The same blocks of one side in the same order, as few (first, count) as there can be."""
    if len(firsts) < FEW:
        return _merged(zip(firsts, counts, strict=True))
    first, count = np.array(firsts, dtype=np.int64), np.array(counts, dtype=np.int64)
    begins = np.concatenate(([True], first[1:] != first[:-1] + count[:-1]))
    at = np.flatnonzero(begins)
    return list(zip(first[at].tolist(), np.add.reduceat(count, at).tolist(), strict=True))


def _coalesced(pairs: Iterable[tuple[int, int]]) -> Iterator[Run]:
    run: Run | None = None
    for theirs, ours in pairs:
        if run and (theirs, ours) == (run.theirs + run.count, run.ours + run.count):
            run = Run(run.theirs, run.ours, run.count + 1)
            continue
        if run:
            yield run
        run = Run(theirs, ours, 1)
    if run:
        yield run


def _merged(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found = list[tuple[int, int]]()
    for first, count in runs:
        if found and first == sum(found[-1]):
            first, count = found[-1][0], found.pop()[1] + count
        found.append((first, count))
    return found
