"""Which part of heads, rows or experts each tensor-parallel rank has. Pure arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `size`: an even, contiguous slice."""

    rank: int
    size: int

    def part(self, count: int) -> range:
        """Which of `count` are ours; where they do not divide, some ranks have one more."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def heads(self, count: int) -> range:
        """Which KV heads are ours; of fewer than there are ranks, several have the same one.

        The other half of kv_transfer's KvLayout.heads_of, which has to say the same.
        """
        if self.size <= count:
            return self.part(count)
        first = self.rank // (self.size // count)
        return range(first, first + 1)


def divides_evenly(count: int, size: int) -> bool:
    """Whether so many KV heads go to so many ranks: one number divides the other."""
    small, large = sorted((count, size))
    return large % small == 0
