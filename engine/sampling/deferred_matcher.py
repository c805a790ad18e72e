"""A grammar that applies only behind the reasoning: until then all tokens are allowed."""

from collections.abc import Sequence as Seq

from torch import Tensor

from engine.sampling.masks import WORD_BITS, Matcher, bitmask_of
from engine.scheduling.thinking import Thought


class DeferredMatcher:
    """A Matcher that defers to `grammar` once the reasoning has ended.

    If the answer may begin with or without reasoning, its first token may begin the opening
    marker or the grammar. A marker that was begun has to be completed.
    """

    def __init__(self, grammar: Matcher, thought: Thought) -> None:
        self._grammar, self._thought = grammar, thought

    @property
    def failure(self) -> str | None:
        """The grammar's: reasoning has none."""
        return self._grammar.failure

    @property
    def may_end(self) -> bool:
        """Reasoning may end anywhere, and the answer with it; an opening mark may not."""
        thought = self._thought
        return thought.within or (not thought.opening and self._grammar.may_end)

    def advance(self, tokens: Seq[int]) -> None:
        """See Matcher."""
        if mine := self._thought.take(tokens):
            self._grammar.advance(mine)

    def fill_bitmask(self, drafted: Seq[int], bits: Tensor, row: int) -> None:
        """See Matcher."""
        thought, mine = self._thought.had(drafted)
        if thought.within:
            bits[row] = -1
        elif thought.begins is not None:
            self._grammar.fill_bitmask(mine, bits, row)
        else:
            marks = bitmask_of(thought.nexts, WORD_BITS * bits.shape[1])
            if not thought.opening:
                self._grammar.fill_bitmask(mine, bits, row)
                marks |= bits[row]
            bits[row] = marks
