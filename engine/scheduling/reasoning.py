"""Where an answer's grammar begins if reasoning comes first, found token by token.

    Hm . </think> { "a" : 1 }      <think> Hm . </think> { "a" : 1 }      { "a" : 1 }
                  ─────────────                          ─────────────    ─────────────
    without `opens`                with `opens`                           with `opens`

It depends only on the tokens of the answer, so every node finds the same place.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import dataclass, field

from engine.request import ReasoningMarks


@dataclass(slots=True)
class ReasoningTracker:
    """Follows one answer through its reasoning. `in_reasoning`: the grammar does not bind yet.

    `grammar_start` is the number of tokens before the grammar's first; None until known.
    `num_tokens` is the number of tokens followed so far.
    """

    marks: ReasoningMarks
    in_reasoning: bool = field(init=False)
    grammar_start: int | None = None
    num_tokens: int = 0
    _last: tuple[int, ...] = ()  # the last tokens, which may become a mark
    _longest: int = field(init=False)  # length of the longest closing mark

    def __post_init__(self) -> None:
        self.in_reasoning = not self.marks.opens
        self._longest = max(map(len, self.marks.closes))

    @property
    def next_mark_tokens(self) -> frozenset[int]:
        """Tokens that begin an opening mark, or continue one that has begun."""
        said = len(self._last)
        return frozenset(one[said] for one in self.marks.opens if one[:said] == self._last)

    @property
    def in_opening_mark(self) -> bool:
        """Whether the answer has begun an opening mark and not completed it."""
        return bool(self._last) and not self.in_reasoning and self.grammar_start is None

    def advance(self, tokens: Iterable[int]) -> list[int]:
        """Follow new tokens; returns those that belong to the grammar, including earlier ones
        that turned out not to be a mark.
        """
        return [mine for token in tokens for mine in self._advance(token)]

    def after(self, drafted: Seq[int]) -> "tuple[ReasoningTracker, list[int]]":
        """A copy advanced by draft tokens, and those of them that belong to the grammar."""
        ahead = copy(self) if drafted else self
        return ahead, ahead.advance(drafted)

    def _advance(self, token: int) -> tuple[int, ...]:
        self.num_tokens += 1
        if self.grammar_start is not None:
            return (token,)
        said = self._last = (*self._last, token)
        if self.in_reasoning:
            self._last = said[-self._longest :]
            if any(said[-len(one) :] == one for one in self.marks.closes):
                self.grammar_start, self.in_reasoning = self.num_tokens, False
        elif said in self.marks.opens:
            self.in_reasoning, self._last = True, ()
        elif not any(one[: len(said)] == said for one in self.marks.opens):
            self.grammar_start = 0
            return said
        return ()
