"""Stretches of a device's memory copied to others: pieces of blocks, gathered or scattered.

Between nodes whose blocks are not alike a block is thousands of pieces of a few kilobytes
(kv_transfer/blocks/mapping.py). One launch copies all of them, each by programs of its own.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
WORD_BYTES = 8
AT_ONCE = 512  # words of 8 bytes, or bytes where a stretch is no whole number of words


def move(sources: Numbers, targets: Numbers, sizes: Numbers, device: torch.device) -> None:
    """Copy `sizes` bytes each, all more than 0, from addresses to addresses on `device`.

    Nothing waits: it is done when the current stream has come so far. No two targets overlap,
    and none overlaps a source.
    """
    if not len(sizes):
        return
    table = np.stack([sources, targets, sizes]).astype(np.int64)
    by_words = not (table % WORD_BYTES).any()
    if by_words:
        table[2] //= WORD_BYTES
    most, count = int(table[2].max()), table.shape[1]
    staged = torch.from_numpy(table)
    if device.type == "cuda":
        staged = staged.pin_memory()
    there = staged.to(device, non_blocking=True)
    _move[(count, triton.cdiv(most, AT_ONCE))](
        there, there[1], there[2], AT_ONCE_=AT_ONCE, BY_WORDS=by_words, num_warps=4
    )


def bytes_moved(total: int) -> int:
    """The least: every byte is read and written once, and nothing is computed."""
    return 2 * total


@triton.jit(do_not_specialize_on_alignment=("targets", "sizes"))
def _move(sources, targets, sizes, AT_ONCE_: tl.constexpr, BY_WORDS: tl.constexpr):
    piece = tl.program_id(0)
    number = tl.program_id(1) * AT_ONCE_ + tl.arange(0, AT_ONCE_)
    inside = number < tl.load(sizes + piece)
    kind: tl.constexpr = tl.int64 if BY_WORDS else tl.uint8
    source = tl.load(sources + piece).to(tl.pointer_type(kind))
    target = tl.load(targets + piece).to(tl.pointer_type(kind))
    tl.store(target + number, tl.load(source + number, mask=inside, other=0), mask=inside)
