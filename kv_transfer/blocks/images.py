"""Images: blocks as they are at their source, reassembled from the pieces that were read."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv_transfer.blocks.mapping import BlockMapping

Bytes = NDArray[np.uint8]
IMAGES_BYTES = 32 << 20  # most bytes of blocks that are reassembled on a device at a time


def images(
    cut: BlockMapping, slots: Sequence[Sequence[int]], ours: Sequence[Bytes]
) -> list[Bytes]:
    """Images as [blocks, bytes], one array for each region of the source's layout.

    `slots` says where in our memory the slots of each block went. `ours` is our memory, or a
    copy of part of it: [blocks, bytes] for each region. Requires a cut that `covers` their
    blocks.
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


def image_bytes(cut: BlockMapping) -> int:
    """The bytes of one of their blocks that lie in one pair of regions."""
    return sum(piece.size for piece in cut.pieces) * cut.their_slots


def stretches(
    cut: BlockMapping, slots: Sequence[Sequence[int]], our_block_bytes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What `images` copies between two regions: source offsets, target offsets, and sizes.

    The images are laid out one after another.
    """
    size = image_bytes(cut)
    block, within = np.divmod(np.array(slots, dtype=np.int64), cut.our_slots)
    ours = block * our_block_bytes + within * cut.step_bytes  # [images, their slots]
    theirs = np.arange(len(slots), dtype=np.int64)[:, None] * size
    theirs = theirs + np.arange(cut.their_slots) * cut.step_bytes
    columns = [(one.our_offset, one.their_offset, one.size) for one in cut.pieces]
    source, target, sizes = np.array(columns, dtype=np.int64).T
    sources = ours[:, :, None] + source
    targets = theirs[:, :, None] + target
    return sources.ravel(), targets.ravel(), np.broadcast_to(sizes, sources.shape).ravel()


def _fill(
    cut: BlockMapping,
    found: Sequence[Bytes],
    ours: Sequence[Bytes],
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    slot: tuple[int, int],
) -> None:
    """Copy one slot of their blocks, for all blocks that have it in the same slot of ours."""
    into, blocks = rows
    there, here = slot[0] * cut.step_bytes, slot[1] * cut.step_bytes
    for piece in cut.pieces:
        start, source = piece.their_offset + there, piece.our_offset + here
        part = ours[piece.our_rank][blocks, source : source + piece.size]
        found[piece.their_rank][into, start : start + piece.size] = part
