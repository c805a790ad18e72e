"""How the token budget of a batch is divided among prompts (chunked prefill)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.scheduling.sequence import Sequence, SequenceState
from engine.scheduling.sequence_manager import SequenceManager


@dataclass(slots=True)
class TokenBudget:
    """At least half of `tokens_left` goes to the first in rank, the rest to short prompts.

    So a long prompt does not hold up short ones, and no number of short ones starves a long
    one. Waiting sequences take part as soon as they can be admitted. If one cannot, none behind
    it is admitted, so that freed blocks go to the first; nor is any behind `blocked_rank`, the
    rank of a reservation that was refused.
    """

    sequences: SequenceManager
    tokens_left: int
    prompts: list[Sequence]
    blocked_rank: tuple[int, int] | None
    admitting: bool
    granted: dict[Sequence, int] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)

    def allocate(self) -> None:
        """Fill `granted` with tokens for each prompt, and `admitted` with the new sequences."""
        if self.tokens_left:
            self._serve_first()
        under_way = sorted(self.prompts, key=self._by_need, reverse=True)
        while self.tokens_left and (seq := self._next(under_way)):
            self._grant(seq, self.tokens_left)

    def _serve_first(self) -> None:
        first = min(self.prompts, key=_rank, default=None)
        head = self._ready(lambda: self.sequences.waiting.first)
        if head and (first is None or head.rank < first.rank) and self._admit(head):
            self.prompts.append(head)
            first = head
        if first is not None:
            self._grant(first, self.tokens_left - self.tokens_left // 2)

    def _next(self, under_way: list[Sequence]) -> Sequence | None:
        """The shortest prompt of all, if it is running or can be admitted, else the shortest of
        those under way.
        """
        new = self._shortest_new()
        is_next = new and (not under_way or new.by_length < self._by_need(under_way[-1]))
        if new and is_next and self._admit(new):
            return new
        return under_way.pop() if under_way else None

    def _by_need(self, seq: Sequence) -> tuple[int, int, int]:
        """Sort key: its length after this batch; prompts that this batch completes go first."""
        priority, pending, place = seq.by_length
        return priority, pending - self.granted.get(seq, 0), place

    def _shortest_new(self) -> Sequence | None:
        line, blocked_rank = self.sequences.waiting, self.blocked_rank
        if blocked_rank is None or line.shortest is None or line.shortest.rank < blocked_rank:
            return self._ready(lambda: line.shortest)
        return self._ready(lambda: line.first)

    def _ready(self, pick: Callable[[], Sequence | None]) -> Sequence | None:
        """The sequence that `pick` finds, after those that must read KV from disk first have
        left the queue; none if this batch has preempted or refused a sequence already.
        """
        if not self.admitting:
            return None
        while (seq := pick()) and self.sequences.start_fetch(seq):
            pass
        return seq

    def _admit(self, seq: Sequence) -> bool:
        """Admit it, if it is not behind a refused reservation and there is room."""
        if self.blocked_rank is not None and self.blocked_rank < seq.rank:
            self.admitting = False
            return False
        before = self.sequences.preemptions
        self.admitting = self.sequences.admit(seq)
        if not self.admitting:
            return False
        self.sequences.waiting.remove(seq)
        self.sequences.run(seq)
        self.admitted.append(seq)
        self.admitting = self.sequences.preemptions == before
        return True

    def _grant(self, seq: Sequence, most: int) -> None:
        """Give it at most `most` tokens of the budget, unless it was preempted."""
        if seq.state is SequenceState.RUNNING:
            has = self.granted.get(seq, 0)
            more = min(most, seq.next_end - seq.computed - has)
            self.granted[seq] = has + more
            self.tokens_left -= more


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank
