"""The part of heads, rows or experts that each tensor-parallel rank has. Pure arithmetic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of rank `rank` of `size`: an even, contiguous slice."""

    rank: int
    size: int

    def part(self, count: int) -> range:
        """This rank's part of `count`; if that does not divide evenly, some have one more."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def heads(self, count: int) -> range:
        """This rank's KV heads; with fewer heads than ranks, several ranks have the same one.

        Must agree with KvLayout.heads_of in kv_transfer.
        """
        if self.size <= count:
            return self.part(count)
        first = self.rank // (self.size // count)
        return range(first, first + 1)


def divides_evenly(count: int, size: int) -> bool:
    """Whether `count` KV heads fit `size` ranks: one number divides the other."""
    small, large = sorted((count, size))
    return large % small == 0
