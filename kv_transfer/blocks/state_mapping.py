"""How states beside KV are read from one layout into another. Pure arithmetic.

A slot is the state of one layer (kv_transfer/layout.py says what that is). Blocks have as many
slots as fit, one behind another, on each side at a distance of its own. Ranks have equal runs
of all heads, so two ranks have a run of heads in common, or nothing:

    one rank   | heads 0 1 2 3 | tap 0: queries 0 1 2 3, keys 0 1 2 3, values 0 1 2 3 | tap 1 …
    of two     | heads 0 1 |     tap 0: queries 0 1,     keys 0 1,     values 0 1     | tap 1 …

That run is one piece of the heads' states, and three of each tap. Between R and S ranks at most
R + S - 1 pairs have something in common, so a slot has at most (R + S - 1) * (1 + 3 * taps)
pieces. With as many ranks on both sides it has one for each.
"""

from collections.abc import Iterator
from functools import lru_cache

from kv_transfer.blocks.mapping import BlockMapping, MappedPiece, are_nested, joined
from kv_transfer.layout import NUMBER_BYTES, KvLayout, are_alike

Row = tuple[int, int, int]
"""A range of a rank's state: its offset, how many heads it has, and the bytes of each."""


@lru_cache(maxsize=64)
def map_states(theirs: KvLayout, ours: KvLayout) -> BlockMapping | None:
    """The mapping for two layouts that `can_pull` accepts; None: there are no states, or whole
    blocks are read, as those of KV are.
    """
    if not (theirs.state_layers and ours.state_layers) or are_alike(theirs, ours):
        return None
    pieces = tuple(joined(_pieces(theirs, ours)))
    nested = are_nested(pieces)
    return BlockMapping(
        theirs.states_per_block,
        ours.states_per_block,
        theirs.state_layer_bytes,
        sum(piece.size for piece in pieces),
        pieces,
        covers=nested,
        spreads=nested and ours.tensor_parallel_size > theirs.tensor_parallel_size,
        our_step_bytes=ours.state_layer_bytes,
    )


def _pieces(theirs: KvLayout, ours: KvLayout) -> Iterator[MappedPiece]:
    """For each pair of ranks that have heads in common, in the order of our bytes."""
    many, few = theirs.tensor_parallel_size, ours.tensor_parallel_size
    rows = list(zip(_rows(theirs), _rows(ours), strict=True))
    for our_rank in range(few):
        for their_rank in range(our_rank * many // few, -(-(our_rank + 1) * many // few)):
            for there, here in rows:
                yield _in_common(there, here, their_rank, our_rank)


def _rows(layout: KvLayout) -> Iterator[Row]:
    """Of each rank's state of a layer, in order: the heads' states, then the taps' inputs."""
    ranks = layout.tensor_parallel_size
    keys, values = layout.state_key_heads // ranks, layout.state_value_heads // ranks
    key, value = layout.state_key_width, layout.state_value_width
    inputs = (keys, key), (keys, key), (values, value)
    at = 0
    for heads, width in ((values, key * value), *inputs * layout.state_taps):
        if width:  # of short convolutions there are only values
            yield at, heads, width * NUMBER_BYTES
        at += heads * width * NUMBER_BYTES


def _in_common(there: Row, here: Row, their_rank: int, our_rank: int) -> MappedPiece:
    their_start, their_heads, size = there
    our_start, our_heads, _ = here
    their_first, our_first = their_rank * their_heads, our_rank * our_heads
    first = max(their_first, our_first)
    count = min(their_first + their_heads, our_first + our_heads) - first
    their_offset = their_start + (first - their_first) * size
    our_offset = our_start + (first - our_first) * size
    return MappedPiece(their_rank, our_rank, their_offset, our_offset, count * size)
