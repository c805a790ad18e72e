"""Which tile of a batch's tokens is of which chunk, found on the device.

Sequence s has its tiles from firsts[s] // span + s on, of `span` tokens each, so `tiles_of`
programs have one for every tile, and at most one per sequence that finds nothing.
"""

import triton
import triton.language as tl

LOOK = tl.constexpr(128)


def tiles_of(tokens: int, sequences: int, span: int) -> int:
    """How many programs have one for every tile, whatever the chunks' lengths are."""
    return tokens // span + sequences + 1


@triton.jit
def whose(firsts, sequences, tile, SPAN: tl.constexpr):
    """The sequence that a tile would be of."""
    found = 0
    for base in tl.range(0, sequences, LOOK):
        some = base + tl.arange(0, LOOK)
        inside = some < sequences
        starts = tl.load(firsts + some, mask=inside, other=0) // SPAN + some
        found += tl.sum((inside & (starts <= tile)).to(tl.int32), 0)
    return found - 1


@triton.jit
def place_of(firsts, sequences, tile, SPAN: tl.constexpr):
    """Of a tile: its sequence, the row where that one's chunk begins, how many tokens this has,
    and the first of them that is in the tile, which is behind the last if the tile is of none.
    """
    sequence = whose(firsts, sequences, tile, SPAN)
    begin = tl.load(firsts + sequence)
    count = tl.load(firsts + sequence + 1) - begin
    return sequence, begin, count, (tile - begin // SPAN - sequence) * SPAN
