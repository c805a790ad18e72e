"""Warm-up: which kernels are launched before requests come, so that none compiles later.

A kernel is compiled for each kind of launch when that is first made. A kind depends on the
weights and their shapes, which are fixed, and on the step's number of rows. Each kind covers a
range of rows that ends at twice its beginning or later, so numbers of rows that double meet
all kinds.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from engine.attention.plan import LogitChanges, LogprobRequest, RowSampling, SamplingPlan

Item = TypeVar("Item")


def row_counts(most: int) -> list[int]:
    """Tokens of batches, ascending: 1, then one more than each power of two, and `most`.

    One token is a decoding sequence's, and the others are one chunk, so the lengths of chunks
    double as well.
    """
    counts, length = {1, most}, 1
    while length < most:
        counts.add(length + 1)
        length *= 2
    return sorted(counts)


def warm_up_sampling(vocabulary: int) -> SamplingPlan:
    """Sampling of one row with every feature on, so that each kernel is compiled."""
    return SamplingPlan(
        [RowSampling(1.0, 0, 0.5, 0.0, (0, 0))],
        LogitChanges(
            masked=np.zeros(1, np.int32),
            bits=np.full((1, -(-vocabulary // 32)), -1, np.int32),
            headers=np.array([(0, 0, 1, 2)], np.int32),
            factors=np.ones((1, 3), np.float32),
            tokens=np.zeros(2, np.int32),
            values=np.zeros(2, np.float32),
        ),
        [LogprobRequest(0, 1)],
    )


def with_progress(items: Iterable[Item], title: str) -> Iterator[Item]:
    """Each item, with a progress bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    yield from track(items, title, console=console, disable=not console.is_terminal)
