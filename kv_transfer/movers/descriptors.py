"""What a read moves, in NIXL's form: rows of (address, bytes, device index). Pure.

Rows are built as arrays: that costs nanoseconds for each, where a call for each would cost more
than the bytes of a block. A long read is cut into pieces: where the CPU does the copying, the
thread that starts a transfer is busy until its bytes are here, and that thread also keeps
leases alive.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kv_transfer.blocks.runs import Column, expand_runs
from kv_transfer.movers.spans import Spans
from kv_transfer.regions import Region, RemoteRegion

PIECE_BYTES = 32 << 20
Rows = NDArray[np.uint64]
Numbers = NDArray[np.int32]
Side = Sequence[Region] | Sequence[RemoteRegion]


def blocks_of(region: Region | RemoteRegion) -> Rows:
    """All blocks of a region as [1, 5], NIXL's form for equal blocks at equal distances:
    address, bytes, device index, distance to the next block, number of blocks.
    """
    size = region.block_bytes
    row = [region.address, size, device_of(region)[1], size, region.num_blocks]
    return np.array([row], dtype=np.uint64)


def numbers_of(regions: Side, firsts: Column, counts: Column) -> Numbers:
    """The indices of some runs' blocks among the blocks of all regions, region by region.

    IndexError for a block that is in no region.
    """
    low, high = int(firsts.min()), int((firsts + counts).max()) - 1
    for region in regions:
        region.at(low)  # raises if out of range
        region.at(high)
    blocks = expand_runs(firsts, counts).astype(np.int32)
    before = np.cumsum([0, *(region.num_blocks for region in regions[:-1])], dtype=np.int32)
    return (before[:, None] + blocks).ravel()


def rows_in(found: Spans, regions: Side) -> Rows:
    """The spans as [spans, 3], each on its region's device."""
    devices = np.array([device_of(region)[1] for region in regions])
    columns = found.address, found.size, devices[found.region]
    return np.stack(columns, axis=1).astype(np.uint64)


def device_of(region: Region | RemoteRegion) -> tuple[str, int]:
    """NIXL's name for the kind of memory, and the device's index."""
    return kind_of(region.device)


def kind_of(device: str) -> tuple[str, int]:
    """The same for a device name: `cpu`, or `cuda:<index>`."""
    kind, _, index = device.partition(":")
    return ("DRAM", 0) if kind == "cpu" else ("VRAM", int(index or 0))


def pieces(ours: Rows, theirs: Rows, most: int = PIECE_BYTES) -> Iterator[tuple[Rows, Rows]]:
    """The same bytes in the same order, in pieces of less than twice `most` bytes.

    Rows of the two sides have equal sizes, pair by pair.
    """
    if ours[:, 1].sum() <= most:
        yield ours, theirs  # nearly always the case, and faster this way
        return
    ours, theirs = _split(ours, most), _split(theirs, most)
    ends = np.cumsum(ours[:, 1], dtype=np.int64)
    numbers = (ends - 1) // most
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    yield from zip(np.split(ours, cuts), np.split(theirs, cuts), strict=True)


def _split(rows: Rows, most: int) -> Rows:
    """Split rows so that none has more than `most` bytes."""
    parts = -(-rows[:, 1].astype(np.int64) // most)
    if (parts == 1).all():
        return rows
    row = np.repeat(np.arange(len(rows)), parts)
    part = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    offset = (part * most).astype(np.uint64)
    split = rows[row]
    split[:, 0] += offset
    split[:, 1] = np.minimum(split[:, 1] - offset, np.uint64(most))
    return split
