"""Who waits for a seat: the first in line, and the shortest, without looking at the others.

Two heaps over the same sequences. Whoever is taken out leaves an entry behind in one of them
or both; its number says that it is stale. When most entries are, both are made anew, so a call
costs the logarithm of the length of the line, shared out over all calls.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from engine.request import RequestId
from engine.scheduling.sequence import Sequence

Entry = tuple[tuple[int, ...], int, Sequence]
SPARE = 32


class WaitingLine:
    """Sequences by urgency and arrival, and by urgency and length; each at most once."""

    def __init__(self) -> None:
        self._numbers = count()
        self._present: dict[RequestId, tuple[int, Sequence]] = {}
        self._by_rank: list[Entry] = []
        self._by_length: list[Entry] = []

    def __len__(self) -> int:
        return len(self._present)

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._present.values())

    @property
    def first(self) -> Sequence | None:
        """The most urgent, and of those the one that came first."""
        return self._top(self._by_rank)

    @property
    def shortest(self) -> Sequence | None:
        """The shortest of the most urgent."""
        return self._top(self._by_length)

    def push(self, seq: Sequence) -> None:
        """Let it wait; its rank and length stay as they are while it does."""
        if len(self._by_rank) + len(self._by_length) > 4 * len(self._present) + SPARE:
            self._compact()
        number = next(self._numbers)
        self._present[seq.request_id] = number, seq
        heappush(self._by_rank, (seq.rank, number, seq))
        heappush(self._by_length, (seq.by_length, number, seq))

    def remove(self, seq: Sequence) -> None:
        """It waits no longer; who does not wait is an error."""
        del self._present[seq.request_id]
        if not self._present:  # what is stale must not keep sequences alive
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
        present = list(self._present.values())
        self._by_rank = [(seq.rank, number, seq) for number, seq in present]
        self._by_length = [(seq.by_length, number, seq) for number, seq in present]
        heapify(self._by_rank)
        heapify(self._by_length)
