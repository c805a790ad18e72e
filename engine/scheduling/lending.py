"""Blocks held while nodes share prefix caches: lent to another node, or filled from one.

lend ──── another node reads ─────────▶ give_back
borrow ── its KV is copied in ────────▶ keep        they are in our prefix cache from now on
                                    └─▶ give_back   the copy failed: they are free again

Loans belong to no sequence and take no seat. They never use blocks that the watermark keeps
free for growing answers, so no request here is preempted for them.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from engine.scheduling.sequence_manager import SequenceManager


@dataclass(frozen=True, slots=True)
class _Loan:
    pinned: list[int]
    fresh: list[int] = field(default_factory=list)
    keys: Seq[bytes] = ()


@dataclass(slots=True)
class BlockLoans:
    """Every loan by its name, from `lend` or `borrow` to `keep` or `give_back`."""

    sequences: SequenceManager
    _loans: dict[str, _Loan] = field(default_factory=dict)

    def lend(self, name: str, keys: Seq[bytes]) -> Seq[int]:
        """Hold the blocks of the leading keys, as many as are cached and can be spared.

        If there are none, there is no loan. A name that is in use is an error.
        """
        self._check_is_new(name)
        pinned = self.sequences.kv.pool.pin(keys, self._spare)
        if pinned:
            self._open(name, _Loan(pinned))
        return pinned

    def borrow(self, name: str, keys: Seq[bytes], have: int) -> Seq[int] | None:
        """New blocks for all keys after the first `have`, whose blocks are held as well.

        None, and no loan, if there is no room, or if the first `have` are no longer cached. A
        name that is in use is an error.
        """
        self._check_is_new(name)
        kv, missing = self.sequences.kv, len(keys) - have
        pinned = kv.pool.pin(keys[:have], self._spare)
        if len(pinned) < have or missing > self._spare:
            kv.pool.release(pinned)
            return None
        fresh = kv.pool.take(missing)
        self._open(name, _Loan(pinned, fresh, keys[have:]))
        return fresh

    def keep(self, name: str) -> None:
        """The borrowed blocks are filled: put them into the prefix cache, and end the loan."""
        loan = self._loans[name]
        self.sequences.kv.pool.register(loan.fresh, loan.keys)
        self.give_back(name)

    def give_back(self, name: str) -> None:
        """End the loan; an unknown name is an error."""
        loan = self._loans.pop(name)
        self.sequences.loans = len(self._loans)
        self.sequences.note_freed_blocks()
        self.sequences.kv.pool.release([*loan.pinned, *loan.fresh])

    @property
    def _spare(self) -> int:
        return max(0, self.sequences.kv.free_blocks - self.sequences.kept_free)

    def _check_is_new(self, name: str) -> None:
        if name in self._loans:  # before a block is taken: nobody would give it back
            raise ValueError(f"loan {name} is open already")

    def _open(self, name: str, loan: _Loan) -> None:
        self._loans[name] = loan
        self.sequences.loans = len(self._loans)
