"""A mover whose link turns bits: what arrives is not what was sent, and nobody says so."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import MoverWrapper, ReadEnd
from kv_transfer.regions import Region


@dataclass
class SpoilingMover(MoverWrapper):
    """Another mover; `turns` are the bits that it turns in what is read next, each once.

    A bit is a place in all bytes of one read, in the order of its runs, region after region,
    and a number from 0 to 7.
    """

    regions: Sequence[Region]
    turns: list[tuple[int, int]] = field(default_factory=list)
    _orders: dict[int, ReadOrder] = field(default_factory=dict)

    def read(self, order: ReadOrder) -> None:
        self._orders[order.read_id] = order
        self.mover.read(order)

    def poll(self) -> Sequence[ReadEnd]:
        ended = self.mover.poll()
        for read_id, error in ended:
            order = self._orders.pop(read_id)
            if error is None and self.turns:
                turns, self.turns = self.turns, []
                for place, bit in turns:
                    self._turn(order, place, bit)
        return ended

    def _turn(self, order: ReadOrder, place: int, bit: int) -> None:
        for region in self.regions:
            for run in order.runs:
                size = run.count * region.block_bytes
                if place < size:
                    at = region.at(run.ours) + place
                    ctypes.memset(at, ctypes.string_at(at, 1)[0] ^ 1 << bit, 1)
                    return
                place -= size
        raise AssertionError(f"nothing is read {place} bytes behind the end")
