"""What a read moves, as NIXL wants it: rows of (address, bytes, device index). Pure.

Rows are made as arrays: a row costs nanoseconds, where a call for each would cost more than
the bytes of a block. A long read is cut into pieces: where the processor copies, the thread
that begins one is away until its bytes are here, and it keeps leases alive, too.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kv_transfer.regions import Region, RemoteRegion

PIECE_BYTES = 32 << 20
Rows = NDArray[np.uint64]
Side = Sequence[Region] | Sequence[RemoteRegion]


def rows_of(regions: Side, firsts: Sequence[int], counts: Sequence[int]) -> Rows:
    """[regions * runs, 3], region by region; IndexError for a block that is in none."""
    first, count = np.array(firsts, dtype=np.int64), np.array(counts, dtype=np.int64)
    return np.concatenate([_rows_in(region, first, count) for region in regions])


def device_of(region: Region | RemoteRegion) -> tuple[str, int]:
    """NIXL's name of the memory's kind, and the device's index."""
    kind, _, index = region.device.partition(":")
    return ("DRAM", 0) if kind == "cpu" else ("VRAM", int(index or 0))


def pieces(ours: Rows, theirs: Rows, most: int = PIECE_BYTES) -> Iterator[tuple[Rows, Rows]]:
    """The same bytes in the same order, in pieces of less than twice `most` bytes.

    Rows of the two sides have equal sizes, pair by pair.
    """
    ours, theirs = _split(ours, most), _split(theirs, most)
    ends = np.cumsum(ours[:, 1], dtype=np.int64)
    numbers = (ends - 1) // most
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    yield from zip(np.split(ours, cuts), np.split(theirs, cuts), strict=True)


def _rows_in(
    region: Region | RemoteRegion, first: NDArray[np.int64], count: NDArray[np.int64]
) -> Rows:
    region.at(int(first.min()))  # raises for what does not lie inside
    region.at(int((first + count).max()) - 1)
    rows = np.empty((len(first), 3), dtype=np.uint64)
    rows[:, 0] = np.uint64(region.address) + (first * region.block_bytes).astype(np.uint64)
    rows[:, 1] = count * region.block_bytes
    rows[:, 2] = device_of(region)[1]
    return rows


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
