"""Where bytes land on a device that are not to lie there as they lie at their source.

A source's blocks are whole stretches of its memory. Where ours are of another size, or on fewer
ranks, they are thousands of pieces here, and a transfer that names all of them takes longer
than its bytes. So what is one stretch there is read as one, into a strip of memory that is ours
alone, and one launch moves its pieces to their places (kv_transfer/gpu/moving.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kv_transfer.movers.spans import Numbers, Spans, joined

if TYPE_CHECKING:
    import torch

SLOT_BYTES, SLOTS = 32 << 20, 2  # one is read into while another is emptied
STAGING_BYTES = SLOTS * SLOT_BYTES
FEWER = 2  # so many times as few stretches have to be read


@dataclass(frozen=True, slots=True)
class StagedRead:
    """What is read at once: stretches `there`, to lie behind one another; and where their parts
    go: from which offset on, to which address, how many bytes.
    """

    there: Spans
    offsets: Numbers
    targets: Numbers
    sizes: Numbers

    @property
    def starts(self) -> Numbers:
        """At which offset each of the stretches begins."""
        return np.cumsum(self.there.size) - self.there.size


def plan_staged_reads(
    there: Spans, here: Spans, most: int = SLOT_BYTES
) -> Sequence[StagedRead]:
    """The same bytes on both sides, in the source's order, no more than `most` at once.

    None where that is not worth the way: there are hardly fewer stretches, or large ones.
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
    """Slots of memory on one device, which are lent to one transfer each."""

    def __init__(self, device: str, slot_bytes: int = SLOT_BYTES) -> None:
        import torch  # only where there is a device

        self.slot_bytes = slot_bytes
        self._memory = torch.empty(SLOTS * slot_bytes, dtype=torch.uint8, device=device)
        self._free = [self.address + slot * slot_bytes for slot in range(SLOTS)]

    @property
    def address(self) -> int:
        """Where all of it begins."""
        return self._memory.data_ptr()

    @property
    def num_bytes(self) -> int:
        """Of all slots."""
        return self._memory.numel()

    @property
    def free(self) -> int:
        """Slots that are lent to nobody."""
        return len(self._free)

    def take(self) -> int | None:
        """The address of a slot; None: all are lent."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: int) -> None:
        """Nothing writes to it or reads from it any more."""
        self._free.append(slot)

    def empty(self, slot: int, parcel: StagedRead) -> Callable[[], bool]:
        """Move what has come to its places; whether that is over is asked later."""
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
        """Whether its pieces are on their way from the slot."""
        return self._emptied is not None

    def arrived(self, *, wanted: bool) -> bool:
        """All bytes are in the slot, or none comes any more; whether it is over."""
        if wanted:
            self._emptied = self.strip.empty(self.slot, self.parcel)
            return self.is_over()
        self.strip.give_back(self.slot)
        return True

    def is_over(self) -> bool:
        """Whether all pieces are in their places; the slot is given back then."""
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
    """Whether the device has come as far as now, of what this thread told it."""
    import torch

    if device.type != "cuda":
        return lambda: True
    event = torch.cuda.Event()
    event.record()
    return event.query
