"""How the prompts share what a batch has left: one gets on, and the short ones get in."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.scheduling.room import Room
from engine.scheduling.sequence import Sequence, State


@dataclass(slots=True)
class Shares:
    """Half of `left`, or more, goes to the first in rank, the rest to whoever needs the least.

    So a short prompt is not kept waiting by a long one, nor a long one for ever by any number
    of short ones: the first in rank always gets on. The waiting take part as soon as there is
    room for them. Who finds none lets nobody past: what comes free is for him. Nor do those
    behind `claim`, the rank of a reservation that found none.
    """

    room: Room
    left: int
    prompts: list[Sequence]
    claim: tuple[int, int] | None
    admitting: bool
    granted: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)

    def share_out(self) -> None:
        """Fill `granted` with tokens for each prompt, `admitted` with whoever is new."""
        if self.left:
            self._serve_first()
        under_way = sorted(self.prompts, key=self._by_need, reverse=True)
        while self.left and (seq := self._next(under_way)):
            self._grant(seq, self.left)

    def _serve_first(self) -> None:
        first = min(self.prompts, key=_rank, default=None)
        head = self._ready(lambda: self.room.waiting.first)
        if head and (first is None or head.rank < first.rank) and self._admit(head):
            self.prompts.append(head)
            first = head
        if first is not None:
            self._grant(first, self.left - self.left // 2)

    def _next(self, under_way: list[Sequence]) -> Sequence | None:
        """The shortest of all, if there is room for it, or else of those under way."""
        new = self._shortest_new()
        is_next = new and (not under_way or new.by_length < self._by_need(under_way[-1]))
        if new and is_next and self._admit(new):
            return new
        return under_way.pop() if under_way else None

    def _by_need(self, seq: Sequence) -> tuple[int, int, int]:
        """Its place by length once this batch has run: who can be done in it comes first."""
        priority, pending, place = seq.by_length
        return priority, pending - self.granted.get(seq, 0), place

    def _shortest_new(self) -> Sequence | None:
        line, claim = self.room.waiting, self.claim
        if claim is None or line.shortest is None or line.shortest.rank < claim:
            return self._ready(lambda: line.shortest)
        return self._ready(lambda: line.first)

    def _ready(self, pick: Callable[[], Sequence | None]) -> Sequence | None:
        """Whoever goes first of those that have not to wait for their KV from disk."""
        if not self.admitting:
            return None
        while (seq := pick()) and self.room.fetch(seq):
            pass
        return seq

    def _admit(self, seq: Sequence) -> bool:
        """Take it in, unless somebody had to give way already, or found no room."""
        if not self.admitting or (self.claim is not None and self.claim < seq.rank):
            self.admitting = False
            return False
        before = self.room.preemptions
        self.admitting = self.room.take_in(seq)
        if not self.admitting:
            return False
        self.room.waiting.remove(seq)
        self.room.run(seq)
        self.admitted.append(seq)
        self.admitting = self.room.preemptions == before
        return True

    def _grant(self, seq: Sequence, most: int) -> None:
        """Some of what is left, unless it had to give way."""
        if seq.state is State.RUNNING:
            has = self.granted.get(seq, 0)
            more = min(most, seq.pending - has)
            self.granted[seq] = has + more
            self.left -= more


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank
