"""Draft tokens found in the sequence itself: prompt lookup.

If the last few tokens occurred earlier, what followed them there may follow again (Saxena,
"Prompt Lookup Decoding", 2023). Torch-free.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from engine.scheduling.drafting import Pace
from engine.scheduling.sequence import Sequence
from engine.settings import SpeculativeConfig

CANDIDATES = 8  # earlier occurrences of the last tokens that are compared further
FIRST_LENGTH = 2


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
    """One sequence's drafts; `place` is where the next one was found."""

    index: NgramIndex
    pace: Pace
    place: int = 0


@dataclass(slots=True)
class NgramDrafter:
    """Drafts are continuations of the longest match of the last `prompt_lookup_max` tokens.

    A match shorter than `prompt_lookup_min` does not count.
    """

    config: SpeculativeConfig

    def wanted(self, seq: Sequence, most: int) -> int:
        """See Drafter."""
        record = self._record(seq)
        length = record.pace.allowed(seq, most)
        if not length:
            return 0
        record.index.add_tokens(seq.tokens)
        place = record.index.find(seq.tokens, self.config.prompt_lookup_max)
        if place is None:
            return 0
        record.place = place
        return length

    def rests(self, seqs: Iterable[Sequence]) -> bool:
        """See Drafter."""
        return all(self._record(seq).pace.rests(seq) for seq in seqs)

    def draft(self, granted: Mapping[Sequence, int]) -> Mapping[Sequence, Seq[int]]:
        """See Drafter."""
        return {seq: self._found(seq, length) for seq, length in granted.items()}

    def _found(self, seq: Sequence, length: int) -> list[int]:
        """A match that reaches the sequence's end is assumed to repeat itself."""
        place = self._record(seq).place
        found = seq.tokens[place : place + length]
        while len(found) < length:
            found += found[: length - len(found)]
        return found

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        """See Drafter."""
        self._record(seq).pace.record(seq, drafted, accepted)

    def _record(self, seq: Sequence) -> _Record:
        if not isinstance(seq.drafting, _Record):
            pace = Pace.starting(FIRST_LENGTH, self.config.most_tokens)
            seq.drafting = _Record(NgramIndex(self.config.prompt_lookup_min), pace)
        return seq.drafting
