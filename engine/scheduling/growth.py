"""How much of the room that answers may take they do take: learned from those that ended."""

from dataclasses import dataclass
from math import ceil

FIRST_GUESS = 0.5
LEAST_WEIGHT = 1 / 32


@dataclass(slots=True)
class Growth:
    """`share` of what answers may still grow is kept free; 0 keeps nothing, 1 all of it.

    An answer that ends tells which part of its limit it used; one that was preempted for want
    of a block tells that all of it was needed. The share is the mean of the first of them,
    and of about the last 32 from then on. With `learns` False it stays as it is.
    """

    share: float = FIRST_GUESS
    learns: bool = True
    _weight: float = 1.0

    def learn(self, used: float) -> None:
        """Take in one answer: the part of its room that it used, 0 to 1."""
        if self.learns:
            self._weight = max(LEAST_WEIGHT, self._weight / (1 + self._weight))
            self.share += self._weight * (min(used, 1.0) - self.share)

    def margin(self, blocks: int) -> int:
        """Blocks to keep free for answers that may still grow by `blocks` together."""
        return ceil(self.share * blocks)
