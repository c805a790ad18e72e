"""Where an answer's grammar begins, if its model thinks aloud first: found token by token.

    Hm . </think> { "a" : 1 }      <think> Hm . </think> { "a" : 1 }      { "a" : 1 }
                  ─────────────                          ─────────────    ─────────────
    without `opens`                with `opens`                           with `opens`

It follows from the tokens of the answer alone, and so is found again anywhere.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import dataclass, field

from engine.request import Marks


@dataclass(slots=True)
class Thought:
    """One answer's. `within`: the next token is free. `begins`: how many tokens come before the
    grammar's first; None while that is not known.
    """

    marks: Marks
    within: bool = field(init=False)
    begins: int | None = None
    taken: int = 0
    _last: tuple[int, ...] = ()  # what may become a mark
    _longest: int = field(init=False)  # of the marks that close

    def __post_init__(self) -> None:
        self.within = not self.marks.opens
        self._longest = max(map(len, self.marks.closes))

    @property
    def nexts(self) -> frozenset[int]:
        """What goes on with an opening mark, before all else or within it."""
        said = len(self._last)
        return frozenset(one[said] for one in self.marks.opens if one[:said] == self._last)

    @property
    def opening(self) -> bool:
        """Whether some of an opening mark was said, and not all of it."""
        return bool(self._last) and not self.within and self.begins is None

    def take(self, tokens: Iterable[int]) -> list[int]:
        """These came; those that are the grammar's, with what seemed to be a mark before."""
        return [mine for token in tokens for mine in self._take(token)]

    def had(self, drafted: Seq[int]) -> "tuple[Thought, list[int]]":
        """The same, had these come, and those of them that are the grammar's."""
        ahead = copy(self) if drafted else self
        return ahead, ahead.take(drafted)

    def _take(self, token: int) -> tuple[int, ...]:
        self.taken += 1
        if self.begins is not None:
            return (token,)
        said = self._last = (*self._last, token)
        if self.within:
            self._last = said[-self._longest :]
            if any(said[-len(one) :] == one for one in self.marks.closes):
                self.begins, self.within = self.taken, False
        elif said in self.marks.opens:
            self.within, self._last = True, ()
        elif not any(one[: len(said)] == said for one in self.marks.opens):
            self.begins = 0
            return said
        return ()
