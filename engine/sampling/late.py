"""A grammar that begins behind reasoning: until then all tokens are allowed."""

from collections.abc import Sequence as Seq

from torch import Tensor

from engine.sampling.masks import WORD_BITS, Mask, bits_of
from engine.scheduling.thinking import Thought


class LateMask:
    """See Mask. Where an answer may begin with reasoning or without, the opening marks are
    allowed beside what the grammar begins with, and who begins a mark has to finish it.
    """

    def __init__(self, grammar: Mask, thought: Thought) -> None:
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
        """See Mask."""
        if mine := self._thought.take(tokens):
            self._grammar.advance(mine)

    def fill(self, drafted: Seq[int], bits: Tensor, row: int) -> None:
        """See Mask."""
        thought, mine = self._thought.had(drafted)
        if thought.within:
            bits[row] = -1
        elif thought.begins is not None:
            self._grammar.fill(mine, bits, row)
        else:
            marks = bits_of(thought.nexts, WORD_BITS * bits.shape[1])
            if not thought.opening:
                self._grammar.fill(mine, bits, row)
                marks |= bits[row]
            bits[row] = marks
