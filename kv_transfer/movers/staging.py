"""Staging buffers on a device, for bytes whose layout here differs from that at their source.

A source's blocks are contiguous ranges of its memory. If our blocks have another size, or are
on fewer ranks, each becomes thousands of pieces here, and a transfer that lists all of them
takes longer than its bytes. So what is contiguous there is read as one range into a separate
buffer, and one launch moves the pieces to their places (kv_transfer/gpu/moving.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kv_transfer.movers.spans import Numbers, Spans, joined

if TYPE_CHECKING:
    import torch

SLOT_BYTES, SLOTS = 32 << 20, 2  # one slot is read into while another is emptied
STAGING_BYTES = SLOTS * SLOT_BYTES
FEWER = 2  # the factor by which staging must reduce the number of ranges


@dataclass(frozen=True, slots=True)
class StagedRead:
    """What is read at once: ranges `there`, stored one after another in the slot.

    Then each piece is moved: from which offset in the slot, to which address, how many bytes.
    """

    there: Spans
    offsets: Numbers
    targets: Numbers
    sizes: Numbers

    @property
    def starts(self) -> Numbers:
        """The offset in the slot at which each range begins."""
        return np.cumsum(self.there.size) - self.there.size


def plan_staged_reads(
    there: Spans, here: Spans, most: int = SLOT_BYTES
) -> Sequence[StagedRead]:
    """The same bytes on both sides, in the source's order, at most `most` bytes at once.

    Empty if staging is not worthwhile: it hardly reduces the number of ranges, or some are
    large.
    """
    order = np.lexsort((there.address, there.region))
    there = Spans(there.region[order], there.address[order], there.size[order])
    (whole,) = joined(there)
    if len(whole.size) * FEWER > len(order) or there.size.max() > most // 2:
        return []
    number = (np.cumsum(there.size) - 1) // (most // 2)
    cuts = np.flatnonzero(np.diff(number)) + 1
    return [_parcel(there, here.address[order], some) for some in _between(cuts, len(order))]


class StagingBuffer:
    """Slots of memory on one device, each lent to one transfer at a time."""

    def __init__(self, device: str, slot_bytes: int = SLOT_BYTES) -> None:
        import torch  # only where there is a device

        self.slot_bytes = slot_bytes
        self._memory = torch.empty(SLOTS * slot_bytes, dtype=torch.uint8, device=device)
        self._free = [self.address + slot * slot_bytes for slot in range(SLOTS)]

    @property
    def address(self) -> int:
        """The address of the first slot."""
        return self._memory.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self._memory.numel()

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def take(self) -> int | None:
        """Take a slot; returns its address, or None if none is free."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Return a slot that nothing writes to or reads from any more."""
        self._free.append(slot)

    def empty(self, slot: int, parcel: StagedRead) -> Callable[[], bool]:
        """Start moving the slot's pieces to their places; the result says if that is done."""
        from kv_transfer.gpu.moving import move  # wants Triton

        move(slot + parcel.offsets, parcel.targets, parcel.sizes, self._memory.device)
        return _event_on(self._memory.device)


@dataclass(slots=True)
class StagedTransfer:
    """One transfer's slot, from before it begins until its pieces are in their places."""

    strip: StagingBuffer
    slot: int
    parcel: StagedRead
    _emptied: Callable[[], bool] | None = field(default=None)

    @property
    def under_way(self) -> bool:
        """Whether its pieces are being moved out of the slot."""
        return self._emptied is not None

    def arrived(self, *, wanted: bool) -> bool:
        """All bytes are in the slot, or none will come (not `wanted`); whether it is over."""
        if wanted:
            self._emptied = self.strip.empty(self.slot, self.parcel)
            return self.is_over()
        self.strip.give_back(self.slot)
        return True

    def is_over(self) -> bool:
        """Whether all pieces are in their places; if so, the slot is returned."""
        if self._emptied is None or not self._emptied():
            return False
        self.strip.give_back(self.slot)
        return True


def _parcel(there: Spans, targets: Numbers, some: slice) -> StagedRead:
    sizes = there.size[some]
    (whole,) = joined(Spans(there.region[some], there.address[some], sizes))
    return StagedRead(whole, np.cumsum(sizes) - sizes, targets[some], sizes)


def _between(cuts: Numbers, count: int) -> list[slice]:
    ends = [0, *cuts.tolist(), count]
    return [slice(*pair) for pair in pairwise(ends)]


def _event_on(device: "torch.device") -> Callable[[], bool]:
    """A check whether the device has finished what this thread has launched so far."""
    import torch

    if device.type != "cuda":
        return lambda: True
    event = torch.cuda.Event()
    event.record()
    return event.query
