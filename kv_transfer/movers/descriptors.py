"""What a read moves, as NIXL wants it: rows of (address, bytes, device index). Pure.

Rows are made as arrays: a row costs nanoseconds, where a call for each would cost more than
the bytes of a block. A long read is cut into pieces: where the processor copies, the thread
that begins one is away until its bytes are here, and it keeps leases alive, too.
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
    """[1, 5]: all of its blocks, as NIXL has equal and equally distant ones: address, bytes,
    device index, bytes to the next, how many."""
    size = region.block_bytes
    row = [region.address, size, device_of(region)[1], size, region.num_blocks]
    return np.array([row], dtype=np.uint64)


def numbers_of(regions: Side, firsts: Column, counts: Column) -> Numbers:
    """Which of the blocks of all regions, counted through, some runs are: region by region.

    IndexError for a block that is in none.
    """
    low, high = int(firsts.min()), int((firsts + counts).max()) - 1
    for region in regions:
        region.at(low)  # raises for what does not lie inside
        region.at(high)
    blocks = expand_runs(firsts, counts).astype(np.int32)
    before = np.cumsum([0, *(region.num_blocks for region in regions[:-1])], dtype=np.int32)
    return (before[:, None] + blocks).ravel()


def rows_in(found: Spans, regions: Side) -> Rows:
    """[spans, 3], each on the device of its region."""
    devices = np.array([device_of(region)[1] for region in regions])
    columns = found.address, found.size, devices[found.region]
    return np.stack(columns, axis=1).astype(np.uint64)


def device_of(region: Region | RemoteRegion) -> tuple[str, int]:
    """NIXL's name of the memory's kind, and the device's index."""
    return kind_of(region.device)


def kind_of(device: str) -> tuple[str, int]:
    """The same of `cpu`, or `cuda:<index>`."""
    kind, _, index = device.partition(":")
    return ("DRAM", 0) if kind == "cpu" else ("VRAM", int(index or 0))


def pieces(ours: Rows, theirs: Rows, most: int = PIECE_BYTES) -> Iterator[tuple[Rows, Rows]]:
    """The same bytes in the same order, in pieces of less than twice `most` bytes.

    Rows of the two sides have equal sizes, pair by pair.
    """
    if ours[:, 1].sum() <= most:
        yield ours, theirs  # nearly always, and quicker so
        return
    ours, theirs = _split(ours, most), _split(theirs, most)
    ends = np.cumsum(ours[:, 1], dtype=np.int64)
    numbers = (ends - 1) // most
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    yield from zip(np.split(ours, cuts), np.split(theirs, cuts), strict=True)


def _split(rows: Rows, most: int) -> Rows:
    """No row of more than `most` bytes."""
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
