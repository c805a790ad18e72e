"""Blocks of KV memory by number: who references them, and what is cached in them.

A block is *used* (referenced) or *free*. A free block may still be in the prefix cache. Free
blocks outside the cache (*blank* ones) are handed out first, then cached ones, least recently
used first, which evicts them. Blank blocks that a running step may still use come last.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq


class BlockPool:
    """References to blocks, and the keys of those in the prefix cache.

    `evicted` is told the key and the block whenever one leaves the cache.
    """

    def __init__(self, num_blocks: int, evicted: Callable[[bytes, int], None]) -> None:
        self.num_blocks = num_blocks
        self._evicted = evicted
        self._refs = [0] * num_blocks
        self._blank = deque(range(num_blocks))
        self._reusable = OrderedDict[int, None]()
        self._launches, self._freed_at = 0, [-1] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out right now."""
        return len(self._blank) + len(self._reusable)

    def has(self, key: bytes | None) -> bool:
        """Whether a block is in the prefix cache under this key."""
        return key in self._block_of

    def known(self, keys: Seq[bytes]) -> int:
        """How many of these keys, counted from the first, are in the prefix cache."""
        return next((n for n, key in enumerate(keys) if key not in self._block_of), len(keys))

    def reference(self, key: bytes) -> int | None:
        """Reference the block under this key; None if there is none."""
        block = self._block_of.get(key)
        if block is not None:
            self._adopt(block)
        return block

    def pin(self, keys: Seq[bytes], spare: int) -> list[int]:
        """Reference the blocks of the leading keys, using at most `spare` free blocks."""
        pinned = list[int]()
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            spare -= block in self._reusable
            if spare < 0:
                break
            self._adopt(block)
            pinned.append(block)
        return pinned

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks; there must be that many."""
        return [self._take() for _ in range(count)]

    def register(self, blocks: Seq[int], keys: Seq[bytes]) -> None:
        """Put full, final blocks into the prefix cache under their keys."""
        for block, key in zip(blocks, keys, strict=True):
            if key not in self._block_of:
                self._key_of[block], self._block_of[key] = key, block

    def release(self, blocks: Seq[int]) -> None:
        """Drop one reference to each of these, tail first so that prefixes live longest."""
        for block in reversed(blocks):
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._freed_at[block] = self._launches
                if block in self._key_of:
                    self._reusable[block] = None
                else:
                    self._add_blank(block)

    def forget(self, blocks: Seq[int], keys: Seq[bytes]) -> None:
        """Take blocks out of the prefix cache that are still there under these keys."""
        for block, key in zip(blocks, keys, strict=True):
            if self._block_of.get(key) == block:
                del self._key_of[block], self._block_of[key]
                self._evicted(key, block)
                if block in self._reusable:
                    del self._reusable[block]
                    self._add_blank(block)

    def put_back(self, block: int) -> None:
        """Give back a block that was taken and has not been used since."""
        self._refs[block] = 0
        self._add_blank(block)

    def used_only_by(self, uses: Counter[int]) -> int:
        """How many blocks have no other references than these."""
        return sum(self._refs[block] == count for block, count in uses.items())

    def note_launch(self) -> None:
        """Note that a step was launched, which may use every block that is not free now."""
        self._launches += 1

    def may_be_in_launched_step(self, blocks: Iterable[int]) -> bool:
        """Whether any of these blocks, just taken, was freed after the last launch."""
        return any(map(self._freed_since_launch, blocks))

    def check(self) -> None:
        """Raise if a recount of every block contradicts the bookkeeping. Slow, for tests."""
        used = sum(refs > 0 for refs in self._refs)
        if min(self._refs) < 0 or used + self.free_blocks != self.num_blocks:
            raise AssertionError(f"{used} used + {self.free_blocks} free != {self.num_blocks}")
        if {*self._reusable} - {*self._key_of} or {*self._blank} & {*self._key_of}:
            raise AssertionError("free blocks are not apart by whether they have a key")
        if {block: key for key, block in self._block_of.items()} != self._key_of:
            raise AssertionError("keys and blocks do not name each other")

    def check_idle(self) -> None:
        """Raise if a block is referenced; costs nothing."""
        if lost := self.num_blocks - self.free_blocks:
            raise AssertionError(f"{lost} blocks belong to nobody")

    def _adopt(self, block: int) -> None:
        self._reusable.pop(block, None)
        self._refs[block] += 1

    def _take(self) -> int:
        evict = not self._blank or (self._reusable and self._freed_since_launch(self._blank[0]))
        block = self._reusable.popitem(last=False)[0] if evict else self._blank.popleft()
        if key := self._key_of.pop(block, None):
            del self._block_of[key]
            self._evicted(key, block)
        self._refs[block] = 1
        return block

    def _add_blank(self, block: int) -> None:
        """Add a free block: the next to be handed out, as it may be in a CPU's cache; the last
        if a launched step may use it.
        """
        if self._launches:
            self._blank.append(block)
        else:
            self._blank.appendleft(block)

    def _freed_since_launch(self, block: int) -> bool:
        return self._freed_at[block] == self._launches > 0
