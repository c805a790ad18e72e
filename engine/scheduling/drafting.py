"""Draft tokens for speculative decoding, found in the sequence itself: prompt lookup.

Where the last few tokens stood before, what followed them there may follow again (Saxena,
"Prompt Lookup Decoding", 2023). Drafts cost computing where they are wrong and change no token,
so a sequence drafts more where it was right and less where it was not. Torch-free.
"""

from dataclasses import dataclass, field
from typing import Protocol

from engine.scheduling.sequence import Sequence
from engine.settings import SpeculativeConfig

CANDIDATES = 8  # places with the same last tokens that are compared further
FIRST_LENGTH = 2
PATIENCE = 2  # drafts in a row of which nothing came true, before drafting rests
LONGEST_REST = 8  # 2 to this power of tokens


class Drafter(Protocol):
    """Proposes draft tokens."""

    def draft(self, seq: Sequence, most: int) -> list[int]:
        """Tokens that may follow those of `seq`, at most so many; empty: no match."""

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """Learn how many of the last draft's tokens were accepted."""


@dataclass(slots=True)
class NgramIndex:
    """Where each `n` tokens of one sequence stood, the latest place first.

    A place is how many tokens there are up to the end of them. Every token is taken in once,
    at a cost that does not depend on how many there are.
    """

    n: int
    _last: dict[tuple[int, ...], int] = field(default_factory=dict)
    _earlier: list[int] = field(default_factory=list)

    def add_tokens(self, tokens: list[int]) -> None:
        """Index every place that a token follows."""
        n, last, earlier = self.n, self._last, self._earlier
        for place in range(len(earlier), len(tokens)):
            key = tuple(tokens[place - n : place]) if place >= n else ()
            earlier.append(last.get(key, 0))
            last[key] = place

    def find(self, tokens: list[int], longest: int) -> int | None:
        """The latest of the places whose last tokens are most like those at the end."""
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
        """How many tokens before `place` are those at the end; at least `n`."""
        alike, end = self.n, len(tokens)
        while (
            alike < min(longest, place) and tokens[place - alike - 1] == tokens[end - alike - 1]
        ):
            alike += 1
        return alike


@dataclass(slots=True)
class _Record:
    """How well drafts do for one sequence: `length` of the next, none before `rests_until`."""

    index: NgramIndex
    length: int = FIRST_LENGTH
    failures: int = 0
    rests_until: int = 0


@dataclass(slots=True)
class NgramDrafter:
    """Drafts are continuations of the longest match of the last `prompt_lookup_max` tokens.

    A match of fewer than `prompt_lookup_min` is none. The length of drafts doubles where all of
    one came true, and is one more than what did otherwise; after `PATIENCE` drafts for nothing
    the sequence rests, each time twice as long, until one comes true again.
    """

    config: SpeculativeConfig

    def draft(self, seq: Sequence, most: int) -> list[int]:
        """Where the match runs into the end, it is taken to go on in circles."""
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
