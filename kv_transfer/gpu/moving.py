"""Copies ranges of a device's memory, to gather or scatter the pieces of blocks.

Between nodes with different layouts, a block is thousands of pieces of a few kilobytes
(kv_transfer/blocks/mapping.py). One launch copies all of them, each by its own programs.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
WORD_BYTES = 8
AT_ONCE = 512  # words of 8 bytes, or bytes if some range is not a whole number of words


def move(sources: Numbers, targets: Numbers, sizes: Numbers, device: torch.device) -> None:
    """Copy from `sources` to `targets`, addresses on `device`; all `sizes` are at least 1 byte.

    Does not wait: the copy is done when the current stream gets there. No target overlaps
    another target or a source.
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
    """The minimum memory traffic: every byte is read and written once."""
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
