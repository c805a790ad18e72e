"""The contract of what proposes draft tokens, and how many it proposes for a sequence.

A step verifies drafts exactly (engine/scheduling/chunk.py): a wrong draft costs
computation and never changes a token. So a sequence drafts more after drafts that were right,
and less after wrong ones. Torch-free.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from engine.scheduling.sequence import Sequence

PATIENCE = 2  # drafts in a row with no token accepted, before drafting rests
LONGEST_REST = 8  # 2 to this power of tokens


class Drafter(Protocol):
    """Proposes draft tokens, for all decoding sequences of a batch at once."""

    def wanted(self, seq: Sequence, most: int) -> int:
        """How many tokens, at most `most`, it would propose behind those of `seq` now."""

    def rests(self, seqs: Iterable[Sequence]) -> bool:
        """Whether it will want none behind the next token of any of these, whichever it is."""

    def draft(self, granted: Mapping[Sequence, int]) -> Mapping[Sequence, Seq[int]]:
        """Draft tokens: for each sequence at most as many as granted, or none.

        It was granted no more than it `wanted`, and has KV blocks for that.
        """

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many of the last draft's tokens were accepted."""


def draft_in_turn(
    drawn: Mapping[Sequence, int],
    granted: Mapping[Sequence, int],
    draw_behind: Callable[[Mapping[Sequence, Seq[int]]], Mapping[Sequence, int]],
) -> dict[Sequence, list[int]]:
    """Draft for all sequences together, from the first token `drawn` for each, one token at a
    time: `draw_behind` is given the drafts to go on behind.

    A draft ends with as many tokens as were `granted`, or with one that ends the answer.
    """
    drafts = dict[Sequence, list[int]]()
    while drawn:
        for seq, token in drawn.items():
            drafts.setdefault(seq, []).append(token)
        behind = {
            seq: drafts[seq]
            for seq, token in drawn.items()
            if len(drafts[seq]) < granted[seq] and token not in seq.end_tokens
        }
        drawn = draw_behind(behind) if behind else {}
    return drafts


@dataclass(slots=True)
class Pace:
    """How long one sequence's next draft is: `length`, and none before `rests_until` tokens.

    If all of a draft was accepted, the next is twice as long, up to `most`; if a part was, one
    longer than that part; if nothing was, half as long. From PATIENCE drafts in a row without
    success on, the sequence does not draft for a number of tokens that doubles each time, until
    a draft succeeds again.
    """

    length: int
    most: int
    failures: int = 0
    rests_until: int = 0

    @classmethod
    def starting(cls, first: int, most: int) -> "Pace":
        """Before the first draft."""
        return cls(min(first, most), most)

    def allowed(self, seq: Sequence, most: int) -> int:
        """How many tokens to propose behind those of `seq`, at most `most`."""
        return 0 if len(seq.tokens) < self.rests_until else min(self.length, most)

    def rests(self, seq: Sequence) -> bool:
        """Whether none will be allowed behind the next token of `seq` either."""
        return len(seq.tokens) + 1 < self.rests_until

    def record(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """Lengthen or shorten the next drafts, or pause them."""
        if accepted:
            self.failures = 0
            self.length = min(self.most, 2 * drafted if accepted == drafted else accepted + 1)
            return
        self.length = max(1, self.length // 2)
        self.failures += 1
        if self.failures >= PATIENCE:
            rest = 1 << min(self.failures, LONGEST_REST)
            self.rests_until = len(seq.tokens) + rest
