"""A grammar that applies only after the reasoning; until then all tokens are allowed."""

from collections.abc import Sequence as Seq

from torch import Tensor

from engine.sampling.masks import WORD_BITS, Matcher, bitmask_of
from engine.scheduling.reasoning import ReasoningTracker


class DeferredMatcher:
    """A Matcher that defers to `grammar` once the reasoning has ended.

    If the answer may begin with or without reasoning, its first token may begin the opening
    marker or the grammar. A marker that was begun has to be completed.
    """

    def __init__(self, grammar: Matcher, thought: ReasoningTracker) -> None:
        self._grammar, self._thought = grammar, thought

    @property
    def failure(self) -> str | None:
        """The grammar's failure; reasoning cannot fail."""
        return self._grammar.failure

    @property
    def may_end(self) -> bool:
        """See Matcher. An answer may end in its reasoning, but not inside an opening mark."""
        thought = self._thought
        return thought.in_reasoning or (not thought.in_opening_mark and self._grammar.may_end)

    def advance(self, tokens: Seq[int]) -> None:
        """See Matcher."""
        if mine := self._thought.advance(tokens):
            self._grammar.advance(mine)

    def fill_bitmask(self, drafted: Seq[int], bits: Tensor, row: int) -> None:
        """See Matcher."""
        thought, mine = self._thought.after(drafted)
        if thought.in_reasoning:
            bits[row] = -1
        elif thought.grammar_start is not None:
            self._grammar.fill_bitmask(mine, bits, row)
        else:
            marks = bitmask_of(thought.next_mark_tokens, WORD_BITS * bits.shape[1])
            if not thought.in_opening_mark:
                self._grammar.fill_bitmask(mine, bits, row)
                marks |= bits[row]
            bits[row] = marks
