"""The cores on which processes run: all share all, or the measured process has its own.

On two cores a proxy, its nodes and their clients are one too many, and whoever waits for a core
has that time added to its answers. Apart, nobody waits; but whoever is sent something sleeps on
another core, and to wake it there costs the sender more, of which a virtual machine makes much.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

Cores = frozenset[int]


@dataclass(frozen=True, slots=True)
class CoreSets:
    """The cores of what is measured, and those of all else."""

    measured: Cores
    others: Cores

    @classmethod
    def shared(cls) -> Self:
        """As the system has it."""
        every = frozenset(os.sched_getaffinity(0))
        return cls(every, every)

    @classmethod
    def apart(cls) -> Self:
        """One core and the others, where there are two."""
        *others, last = sorted(os.sched_getaffinity(0))
        return cls(frozenset({last}), frozenset(others)) if others else cls.shared()


@contextmanager
def started_on(cores: Cores) -> Iterator[None]:
    """Processes that are started within stay on these."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
