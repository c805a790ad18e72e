"""Staging for NIXL: reads go into a buffer, and pieces are moved from there to their places.

The buffer is allocated and registered when a source with another layout is first read.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kv_transfer.movers.descriptors import Rows, kind_of
from kv_transfer.movers.nixl_build import FAILURES
from kv_transfer.movers.spans import Spans
from kv_transfer.movers.staging import (
    SLOT_BYTES,
    StagedRead,
    StagedTransfer,
    StagingBuffer,
    plan_staged_reads,
)

if TYPE_CHECKING:
    from nixl_cu12._api import nixl_agent

log = logging.getLogger(__name__)


@dataclass(slots=True)
class StagingPool:
    """The staging buffer of one agent on one device, or none if it cannot be allocated."""

    agent: "nixl_agent"
    device: str
    slot_bytes: int = SLOT_BYTES
    strip: StagingBuffer | None = field(default=None)
    _refused: bool = field(default=False)

    def parcels(self, there: Spans, here: Spans) -> Sequence[StagedRead]:
        """How to read `there` into `here` by way of the buffer; empty: read piece by piece."""
        found = plan_staged_reads(there, here, self.slot_bytes)
        return found if found and self._opened() else []

    def take(self, parcel: StagedRead) -> StagedTransfer | None:
        """Take a slot for it; None if none is free."""
        assert self.strip is not None
        slot = self.strip.take()
        return None if slot is None else StagedTransfer(self.strip, slot, parcel)

    def rows(self, landing: StagedTransfer) -> Rows:
        """Where its ranges are read to."""
        sizes = landing.parcel.there.size
        index = np.full(len(sizes), kind_of(self.device)[1], dtype=np.int64)
        columns = landing.slot + landing.parcel.starts, sizes, index
        return np.stack(columns, axis=1).astype(np.uint64)

    def _opened(self) -> bool:
        if self.strip is None and not self._refused:
            try:
                self.strip = self._open()
            except (RuntimeError, *FAILURES) as error:  # torch.OutOfMemoryError is one
                self._refused = True
                log.warning("blocks that are not alike are read piece by piece: %r", error)
        return self.strip is not None

    def _open(self) -> StagingBuffer:
        strip, (kind, index) = StagingBuffer(self.device, self.slot_bytes), kind_of(self.device)
        self.agent.register_memory([(strip.address, strip.num_bytes, index, "")], kind)
        return strip
