"""How much is kept free for answers that grow: learned from those that ended."""

from dataclasses import dataclass
from math import ceil

FIRST_GUESS = 0.125
KEPT = 0.25
LEAST_WEIGHT = 1 / 32


@dataclass(slots=True)
class Growth:
    """`share` of what answers may still grow is kept free; 0 keeps nothing, 1 all of it.

    An answer that ends tells which part of its limit it used, and a quarter of that is kept:
    while some grow, others end and give their blocks back. One that was preempted for want of
    a block tells that all was needed. The share is the mean of the first of them, and of about
    the last 32 from then on. With `learns` False it stays as it is.
    """

    share: float = FIRST_GUESS
    learns: bool = True
    _weight: float = 1.0

    def ended(self, used: float) -> None:
        """An answer used this part of its limit, 0 to 1."""
        self._learn(KEPT * min(used, 1.0))

    def fell_short(self) -> None:
        """What was kept free did not suffice."""
        self._learn(1.0)

    def margin(self, blocks: int) -> int:
        """Blocks to keep free for answers that may still grow by `blocks` together."""
        return ceil(self.share * blocks)

    def _learn(self, share: float) -> None:
        if self.learns:
            self._weight = max(LEAST_WEIGHT, self._weight / (1 + self._weight))
            self.share += self._weight * (share - self.share)
