"""Drafts that come true as often as you like: the judge of whoever believes them."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from engine.scheduling.sequence import Sequence
from tests.fakes.engine import FakeEngine
from tests.fakes.model import VOCABULARY, alone


@dataclass
class Oracle:
    """`right` says for each draft how many of its tokens, and `length` how many there are."""

    length: Callable[[], int]
    right: Callable[[], int]
    judged: list[tuple[int, int]] = field(default_factory=list)
    _answers: dict[Sequence, list[int]] = field(default_factory=dict)

    def wanted(self, seq: Sequence, most: int) -> int:
        return min(self.length(), most)

    def rests(self, seqs: Iterable[Sequence]) -> bool:
        return False

    def draft(self, granted: Mapping[Sequence, int]) -> Mapping[Sequence, list[int]]:
        return {seq: self._drafted(seq, length) for seq, length in granted.items()}

    def _drafted(self, seq: Sequence, length: int) -> list[int]:
        if seq not in self._answers:
            self._answers[seq] = [*seq.request.tokens, *alone(seq.request)]
        known, right = self._answers[seq][len(seq.tokens) :], self.right()
        foretold = [known[i] if i < len(known) else 0 for i in range(length)]
        return [one if i < right else (one + 1) % VOCABULARY for i, one in enumerate(foretold)]

    def record_acceptance(self, seq: Sequence, drafted: int, accepted: int) -> None:
        assert 0 <= accepted <= drafted
        self.judged.append((drafted, accepted))


def drafting(*, chunk: int = 8, **limits: int) -> FakeEngine:
    """An engine whose drafts are as long and as right as they can be, and as wrong."""
    engine = FakeEngine(**{"chunk": chunk, **limits})
    lengths, rights = cycle([1, 4, 2, 3]), cycle([4, 1, 4, 4, 0])
    engine.scheduler.drafter = Oracle(lambda: next(lengths), lambda: next(rights))
    return engine


def drafted_by(folder: Path, most: int = 4, **more: int) -> dict[str, str]:
    """The engine's settings for a draft model."""
    said = {"model": str(folder), "num_speculative_tokens": most, **more}
    return {"speculative_config": json.dumps(said)}
