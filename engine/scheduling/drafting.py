"""Draft tokens for speculative decoding, found in the sequence itself: prompt lookup.

If the last few tokens occurred earlier, what followed them there may follow again (Saxena,
"Prompt Lookup Decoding", 2023). A wrong draft costs computation but never changes a token, so
a sequence drafts more after drafts that were right, and less after wrong ones. Torch-free.
"""

from dataclasses import dataclass, field
from typing import Protocol

from engine.scheduling.sequence import Sequence
from engine.settings import SpeculativeConfig

CANDIDATES = 8  # earlier occurrences of the last tokens that are compared further
FIRST_LENGTH = 2
PATIENCE = 2  # drafts in a row with no token accepted, before drafting rests
LONGEST_REST = 8  # 2 to this power of tokens


class Drafter(Protocol):
    """Proposes draft tokens."""

    def draft(self, seq: Sequence, most: int) -> list[int]:
        """At most `most` tokens that may follow those of `seq`; empty if nothing matches."""

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many of the last draft's tokens were accepted."""


@dataclass(slots=True)
class NgramIndex:
    """The places at which each `n`-gram of one sequence occurs, the latest first.

    A place is the number of tokens up to the n-gram's end. Each token is indexed once, at a
    cost that does not depend on the sequence's length.
    """

    n: int
    _last: dict[tuple[int, ...], int] = field(default_factory=dict)
    _earlier: list[int] = field(default_factory=list)

    def add_tokens(self, tokens: list[int]) -> None:
        """Index every new place that is followed by a token."""
        n, last, earlier = self.n, self._last, self._earlier
        for place in range(len(earlier), len(tokens)):
            key = tuple(tokens[place - n : place]) if place >= n else ()
            earlier.append(last.get(key, 0))
            last[key] = place

    def find(self, tokens: list[int], longest: int) -> int | None:
        """The place whose preceding tokens match the sequence's end for longest; the latest of
        several, and None if there is none.
        """
        place = self._last.get(tuple(tokens[-self.n :]), 0)
        best, most = None, 0
        for _ in range(CANDIDATES):
            if place < self.n:
                break
            alike = self._alike(tokens, place, longest)
            if alike > most:
                best, most = place, alike
            if most == longest:
                break
            place = self._earlier[place]
        return best

    def _alike(self, tokens: list[int], place: int, longest: int) -> int:
        """How many tokens before `place` equal those at the sequence's end; at least `n`."""
        alike, end = self.n, len(tokens)
        while (
            alike < min(longest, place) and tokens[place - alike - 1] == tokens[end - alike - 1]
        ):
            alike += 1
        return alike


@dataclass(slots=True)
class _Record:
    """One sequence's drafts: the next one's `length`; none before `rests_until` tokens."""

    index: NgramIndex
    length: int = FIRST_LENGTH
    failures: int = 0
    rests_until: int = 0


@dataclass(slots=True)
class NgramDrafter:
    """Drafts are continuations of the longest match of the last `prompt_lookup_max` tokens.

    A match shorter than `prompt_lookup_min` does not count. If all of a draft was accepted, the
    next is twice as long; if a part was, one longer than that part; if nothing was, half as
    long. From `PATIENCE` drafts in a row without success on, the sequence does not draft for a
    number of tokens that doubles each time, until a draft succeeds again.
    """

    config: SpeculativeConfig

    def draft(self, seq: Sequence, most: int) -> list[int]:
        """See Drafter. A match that reaches the sequence's end is assumed to repeat itself."""
        record, tokens = self._record(seq), seq.tokens
        if len(tokens) < record.rests_until:
            return []
        record.index.add_tokens(tokens)
        place = record.index.find(tokens, self.config.prompt_lookup_max)
        if place is None:
            return []
        length = min(record.length, most)
        found = tokens[place : place + length]
        while len(found) < length:
            found += found[: length - len(found)]
        return found

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """Lengthen or shorten the next drafts of this sequence, or pause them."""
        record, most = self._record(seq), self.config.num_speculative_tokens
        if accepted:
            record.failures = 0
            record.length = min(most, 2 * drafted if accepted == drafted else accepted + 1)
            return
        record.length = max(1, record.length // 2)
        record.failures += 1
        if record.failures >= PATIENCE:
            rest = 1 << min(record.failures, LONGEST_REST)
            record.rests_until = len(seq.tokens) + rest

    def _record(self, seq: Sequence) -> _Record:
        if not isinstance(seq.drafting, _Record):
            first = min(FIRST_LENGTH, self.config.num_speculative_tokens)
            seq.drafting = _Record(NgramIndex(self.config.prompt_lookup_min), first)
        return seq.drafting
