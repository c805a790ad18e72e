"""Blocks that are held for other nodes' sake: lent to them, or being filled by them.

lend ──── others read ────────────▶ give_back
borrow ── theirs are copied in ───▶ keep        they are known from now on
                                └─▶ give_back   nobody has ever read them

Nobody runs on them and they take no seat. They never come out of what is kept free for answers
that grow, so no request here gives way for a cache's sake.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from engine.scheduling.room import Room


@dataclass(frozen=True, slots=True)
class _Loan:
    pinned: list[int]
    fresh: list[int] = field(default_factory=list)
    keys: Seq[bytes] = ()


@dataclass(slots=True)
class Lending:
    """Every loan by its name, from `lend` or `borrow` to `keep` or `give_back`."""

    room: Room
    _loans: dict[str, _Loan] = field(default_factory=dict)

    def lend(self, name: str, keys: Seq[bytes]) -> Seq[int]:
        """Hold the blocks of the first of these keys, as many as are known and can be spared.

        Without any there is no loan. A name that is in use is an error.
        """
        pinned = self.room.kv.pin(keys, self._spare)
        if pinned:
            self._open(name, _Loan(pinned))
        return pinned

    def borrow(self, name: str, keys: Seq[bytes], have: int) -> Seq[int] | None:
        """New blocks for all keys but the first `have`, whose own are held as well.

        None, and no loan, if there is no room, or if these are not here any more.
        """
        kv, missing = self.room.kv, len(keys) - have
        pinned = kv.pin(keys[:have], self._spare)
        if len(pinned) < have or missing > self._spare:
            kv.drop(pinned)
            return None
        fresh = kv.take(missing)
        self._open(name, _Loan(pinned, fresh, keys[have:]))
        return fresh

    def keep(self, name: str) -> None:
        """What was borrowed is filled: whoever has these keys finds it."""
        loan = self._loans[name]
        self.room.kv.name(loan.fresh, loan.keys)
        self.give_back(name)

    def give_back(self, name: str) -> None:
        """End the loan; an unknown name is an error."""
        loan = self._loans.pop(name)
        self.room.loans = len(self._loans)
        self.room.returned()
        self.room.kv.drop([*loan.pinned, *loan.fresh])

    @property
    def _spare(self) -> int:
        return max(0, self.room.kv.free_blocks - self.room.kept_free)

    def _open(self, name: str, loan: _Loan) -> None:
        if name in self._loans:
            raise ValueError(f"loan {name} is open already")
        self._loans[name] = loan
        self.room.loans = len(self._loans)
