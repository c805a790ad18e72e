"""Warm-up: which kernels are launched before requests come, so that none compiles later.

A kernel is compiled for each kind of launch, when it is first made. Whatever else a kind
follows from, weights and their shapes say it; in a step it follows from how many rows there
are. A kind begins at some number of rows and ends at twice that or later, so counts that
double meet all kinds: each was launched once behind the largest batch.
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

    One token is a decode step's beside a chunk of all others, so chunks' lengths double, too.
    """
    counts, length = {1, most}, 1
    while length < most:
        counts.add(length + 1)
        length *= 2
    return sorted(counts)


def warm_up_sampling(vocabulary: int) -> SamplingPlan:
    """Sampling of one row with every feature on, so that each kernel compiles."""
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
