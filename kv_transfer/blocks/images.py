"""Blocks as their source has them, put together again from the pieces that were read."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv_transfer.blocks.cutting import Cut

Bytes = NDArray[np.uint8]


def images(cut: Cut, slots: Sequence[Sequence[int]], ours: Sequence[Bytes]) -> list[Bytes]:
    """[blocks, bytes] for each of their regions; `slots` of ours is where each block went.

    `ours` is our memory, or what was copied of it, [blocks, bytes] for each region. For a cut
    that `covers` their blocks.
    """
    sizes = [0] * (1 + max(piece.their_rank for piece in cut.pieces))
    for piece in cut.pieces:
        sizes[piece.their_rank] += piece.size * cut.their_slots
    found = [np.zeros((len(slots), size), dtype=np.uint8) for size in sizes]
    block, within = np.divmod(np.array(slots, dtype=np.int64), cut.our_slots)
    for there in range(cut.their_slots):
        for here in range(cut.our_slots):
            rows = np.flatnonzero(within[:, there] == here)
            if len(rows):
                _fill(cut, found, ours, (rows, block[rows, there]), (there, here))
    return found


def _fill(
    cut: Cut,
    found: Sequence[Bytes],
    ours: Sequence[Bytes],
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    slot: tuple[int, int],
) -> None:
    """One slot of their blocks, for all that have it in the same slot of ours."""
    into, blocks = rows
    there, here = slot[0] * cut.step_bytes, slot[1] * cut.step_bytes
    for piece in cut.pieces:
        start, source = piece.their_offset + there, piece.our_offset + here
        part = ours[piece.our_rank][blocks, source : source + piece.size]
        found[piece.their_rank][into, start : start + piece.size] = part
