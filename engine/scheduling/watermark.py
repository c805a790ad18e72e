"""The watermark of free KV blocks, kept for answers that grow; learned from past ones."""

from dataclasses import dataclass
from math import ceil

FIRST_GUESS = 0.125
KEPT = 0.25
LEAST_WEIGHT = 1 / 32


@dataclass(slots=True)
class Watermark:
    """The `share` of the answers' possible growth that is kept free, from 0 to 1.

    The share is a running mean over about the last 32 samples. An answer that finishes gives a
    sample of a quarter of the part of its `max_tokens` that it used, because while some answers
    grow, others finish and free their blocks. A preemption for want of a block gives a sample
    of 1. With `learns` False the share does not change.
    """

    share: float = FIRST_GUESS
    learns: bool = True
    _weight: float = 1.0

    def record_finish(self, used: float) -> None:
        """An answer finished and used this part of its `max_tokens`, 0 to 1."""
        self._learn(KEPT * min(used, 1.0))

    def record_preemption(self) -> None:
        """A sequence was preempted: the blocks kept free did not suffice."""
        self._learn(1.0)

    def margin(self, blocks: int) -> int:
        """Blocks to keep free for answers that may still grow by `blocks` together."""
        return ceil(self.share * blocks)

    def _learn(self, share: float) -> None:
        if self.learns:
            self._weight = max(LEAST_WEIGHT, self._weight / (1 + self._weight))
            self.share += self._weight * (share - self.share)
