"""The waiting queue: finds the first in rank and the shortest, each in logarithmic time.

A sequence with the same prompt as one that is queued or running (its leader) is set aside
until the leader's blocks are in the prefix cache, so `n` choices compute their prompt once.

There are two heaps over the same sequences. Removing a sequence leaves its entries in them;
an entry is stale if its number is no longer the sequence's. When most entries are stale both
heaps are rebuilt, so a call costs O(log n), amortized.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from engine.request import RequestId
from engine.scheduling.sequence import Sequence

Entry = tuple[tuple[int, ...], int, Sequence]
SPARE = 32


class WaitingQueue:
    """Sequences by urgency and arrival, and by urgency and length; each at most once."""

    def __init__(self) -> None:
        self._numbers = count()
        self._present: dict[RequestId, tuple[int, Sequence]] = {}
        self._by_rank: list[Entry] = []
        self._by_length: list[Entry] = []
        self._leaders: dict[bytes, Sequence] = {}
        self._aside: dict[bytes, list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._present.values())

    @property
    def first(self) -> Sequence | None:
        """The most urgent sequence, the earliest among equals."""
        return self._top(self._by_rank)

    @property
    def shortest(self) -> Sequence | None:
        """The shortest sequence among the most urgent."""
        return self._top(self._by_length)

    def push(self, seq: Sequence, prefix: bytes | None = None) -> None:
        """Queue a sequence; its rank and length must not change while it waits.

        `prefix` is the key of the last block that it could share with equal prompts. The first
        sequence with that key leads; later ones are set aside until `release_followers`.
        """
        leader = self._leaders.setdefault(prefix, seq) if prefix else seq
        if prefix and leader.rank < seq.rank:
            self._present[seq.request_id] = next(self._numbers), seq
            self._aside.setdefault(prefix, []).append(seq)
            seq.follows = prefix
            return
        if leader is seq:
            seq.leads = prefix or seq.leads
        self._enqueue(seq)

    def release_followers(self, seq: Sequence) -> None:
        """The leader's blocks are cached, or it is gone: queue what was set aside for it.

        If they are not cached, the first of those leads the others.
        """
        prefix, seq.leads = seq.leads, None
        if prefix is None:
            return
        del self._leaders[prefix]
        for follower in self._aside.pop(prefix, ()):
            follower.follows = None
            self.push(follower, None if seq.computed >= seq.given else prefix)

    def _enqueue(self, seq: Sequence) -> None:
        if len(self._by_rank) + len(self._by_length) > 4 * len(self._present) + SPARE:
            self._compact()
        number = next(self._numbers)
        self._present[seq.request_id] = number, seq
        heappush(self._by_rank, (seq.rank, number, seq))
        heappush(self._by_length, (seq.by_length, number, seq))

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out of the queue; one that is not in it is an error."""
        del self._present[seq.request_id]
        if seq.follows is not None:
            self._aside[seq.follows].remove(seq)
            seq.follows = None
        if not self._present:  # stale entries must not keep sequences alive
            self._by_rank.clear()
            self._by_length.clear()

    def _top(self, heap: list[Entry]) -> Sequence | None:
        while heap:
            _, number, seq = heap[0]
            if self._present.get(seq.request_id, (None,))[0] == number:
                return seq
            heappop(heap)
        return None

    def _compact(self) -> None:
        present = [entry for entry in self._present.values() if entry[1].follows is None]
        self._by_rank = [(seq.rank, number, seq) for number, seq in present]
        self._by_length = [(seq.by_length, number, seq) for number, seq in present]
        heapify(self._by_rank)
        heapify(self._by_length)
