"""Snapshots of states: copies of what a model keeps beside KV, at the ends of some prefixes.

A state holds what remains of all tokens before it, and is changed in place. So KV that is
cached can be reused only up to where the state was copied. That is done at two places of a
prompt: at its last block boundary, where the next turn of a chat goes on; and where it leaves
what is cached already, as others that share so much may come again (a system prompt). The
second is the speculative insertion of Pan et al. 2024, "Marconi: Prefix Caching for the Era of
Hybrid LLMs".

An answer's state is copied too, at block boundaries while it is decoded, as nobody knows where
it will end. Each such copy takes the place of the answer's last one.

A snapshot takes as many blocks as a sequence's state. They are in the prefix cache under keys
of their own, and evicted like others. The copies are part of the steps that compute tokens:
from a snapshot before a sequence's first chunk, to one behind the chunk that ends there.
"""

from collections.abc import Sequence as Seq

from engine.scheduling.block_pool import BlockPool
from engine.scheduling.sequence import Sequence
from engine.scheduling.state_trail import StateTrail

LEAST_SAVED = 256  # tokens, about as many as take no longer than reading all weights
INDEX_BYTES = 4


class Snapshots:
    """Finds and makes snapshots of `blocks_each` blocks in a pool.

    Each costs a prompt one step more, so it must save `least_saved` tokens or more.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, blocks_each: int, least_saved: int = LEAST_SAVED
    ) -> None:
        self.least_saved, self.blocks_each = least_saved, blocks_each
        self._pool, self._block_size = pool, block_size

    def begin(self, seq: Sequence, keys: Seq[bytes]) -> int:
        """Set the trail of a sequence with these keys; behind how many of them it can begin."""
        cached, size = self._pool.known(keys), self._block_size
        first = self._newest(keys[:cached])
        source, ends, last = list[int](), list[int](), first * size
        seq.copied = last
        if first:
            source = self._pool.pin(self._keys_at(keys[first - 1]), self._pool.free_blocks)
        for end in (cached * size, len(keys) * size):
            if end - last >= self.least_saved:
                ends.append(end)
                last = end
        seq.trail = StateTrail(source, ends) if source or ends else None
        return first

    def begin_filled(self, seq: Sequence, keys: Seq[bytes]) -> None:
        """Note which snapshot a sequence with these keys has here; its state comes to it."""
        seq.copied = self._newest(keys) * self._block_size

    def missing(self, keys: Seq[bytes]) -> bytes | None:
        """The last key, if a sequence with these keys will make a snapshot there."""
        saved = (len(keys) - self._newest(keys)) * self._block_size
        return keys[-1] if keys and saved >= self.least_saved else None

    def prepare(self, trail: StateTrail, end: int) -> None:
        """Take blocks for a snapshot behind a chunk that ends there, if one is due.

        If there are too few free ones it is not made. They are free again, and cached, once the
        chunk was computed.
        """
        due = trail.ends and trail.ends[0] == end
        if due and not trail.target and self.blocks_each <= self._pool.free_blocks:
            trail.target = self._pool.take(self.blocks_each)

    def prepare_decoding(self, seq: Sequence, end: int, spare: int) -> None:
        """Take blocks for a snapshot behind a decode step that ends there, if one is due.

        It is not made if fewer than `spare` blocks stayed free.
        """
        if end % self._block_size or end - seq.copied < self.least_saved:
            return
        if seq.trail is None and self.blocks_each + spare <= self._pool.free_blocks:
            seq.trail = StateTrail([], [end], self._pool.take(self.blocks_each))

    def settle(self, seq: Sequence) -> None:
        """A chunk of the sequence was computed, and its full blocks have keys."""
        trail = seq.trail
        if trail is None:
            return
        self._pool.release(trail.source)
        trail.source = []
        if trail.ends and trail.ends[0] == seq.computed:
            if trail.target:
                self._keep(seq, trail.target)
            trail.ends, trail.target = trail.ends[1:], []
        if not trail.ends:
            seq.trail = None

    def _keep(self, seq: Sequence, copy: list[int]) -> None:
        """Cache the copy of its present state; one made earlier in the answer is dropped."""
        keys = self._keys_at(seq.keys[seq.computed // self._block_size - 1])
        if seq.computed > len(seq.request.prompt):
            self._pool.forget(*seq.answer_copy)
            seq.answer_copy = copy, keys
        self._pool.register(copy, keys)
        self._pool.release(copy)
        seq.copied = seq.computed

    def _newest(self, keys: Seq[bytes]) -> int:
        """How many of these keys a sequence can begin behind: those before a snapshot."""
        for count in range(len(keys), 0, -1):
            if self._pool.has(_key(keys[count - 1], 0)) and self._is_whole(keys[count - 1]):
                return count
        return 0

    def _is_whole(self, key: bytes) -> bool:
        return self._pool.known(self._keys_at(key)) == self.blocks_each

    def _keys_at(self, key: bytes) -> Seq[bytes]:
        """The keys of a snapshot's blocks, at the end of the prefix with this key."""
        return [_key(key, index) for index in range(self.blocks_each)]


def _key(prefix: bytes, index: int) -> bytes:
    """Longer than the keys of KV, so never one of them."""
    return prefix + index.to_bytes(INDEX_BYTES)
