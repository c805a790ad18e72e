"""Copies blocks within one process, optionally with the errors of a broken link."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kv_transfer.errors import PeerUnreachable
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.spans import both_sides
from kv_transfer.regions import Region


@dataclass(slots=True)
class Copier:
    """Copies from a source's regions into `ours`; after `left` more bytes the link breaks."""

    ours: Sequence[Region]
    blocks_copied: int = 0
    left: int | None = None

    def copy(
        self, theirs: Sequence[Region], order: ReadOrder, *, spoil: bool
    ) -> PeerUnreachable | None:
        """Copy all runs in order; `spoil` makes the first byte of each block or piece wrong.

        If an error is returned, everything before it was copied.
        """
        try:
            self.blocks_copied += sum(run.count for run in order.runs)
            stretches = self._pieces if order.cut.pieces else self._blocks
            for source, target, length in stretches(theirs, order):
                self._one(source, target, length, spoil=spoil)
        except IndexError as error:
            return PeerUnreachable(str(error))
        except PeerUnreachable as error:
            return error
        return None

    def _blocks(
        self, theirs: Sequence[Region], order: ReadOrder
    ) -> Iterator[tuple[int, int, int]]:
        """For each block: source address, target address, bytes."""
        for run in order.runs:
            for index in range(run.count):
                for there, here in zip(theirs, self.ours, strict=True):
                    source, target = there.at(run.theirs + index), here.at(run.ours + index)
                    yield source, target, here.block_bytes

    def _pieces(
        self, theirs: Sequence[Region], order: ReadOrder
    ) -> Iterator[tuple[int, int, int]]:
        """The same for sides with different layouts."""
        there, here = both_sides(order, theirs, self.ours)
        columns = there.address, here.address, here.size
        yield from zip(*(column.tolist() for column in columns), strict=True)

    def _one(self, source: int, target: int, length: int, *, spoil: bool) -> None:
        passes = length if self.left is None else min(length, self.left)
        ctypes.memmove(target, source, passes)
        if spoil and passes:
            ctypes.memset(target, ctypes.string_at(target, 1)[0] ^ 1, 1)
        if self.left is not None:
            self.left -= passes
        if passes < length:
            self.left = None
            raise PeerUnreachable("the link was cut")
