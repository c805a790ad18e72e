"""Floors of attention, and of rotary embedding with the KV write before it."""

from collections.abc import Sequence

from torch import Tensor

from engine.kernels.floor import Floor
from engine.kernels.gpu.paged_call import Heads


def decode_floor(heads: Heads, lengths: Sequence[int], window: int | None = None) -> Floor:
    """Each query and the KV that it sees are read once, and each result is written once; the
    operations are those of `prefill_floor` with one query for each sequence.
    """
    return prefill_floor(heads, [(1, length) for length in lengths], window)


def prefill_floor(
    heads: Heads, chunks: Sequence[tuple[int, int]], window: int | None = None
) -> Floor:
    """`chunks` are (queries, length): the last queries of a sequence of that total length.

    Each query is multiplied with each key that it sees, and each weight with its value. Keys
    and values are read once for a chunk, by all its queries and heads together.
    """
    asked = sum(count for count, _ in chunks)
    read = sum(
        _first_sees(count, length, window) + count - 1 for count, length in chunks if count
    )
    pairs = sum(_pairs(count, length, window) for count, length in chunks)
    ours = asked * heads.heads * (heads.width + heads.value_width) * heads.itemsize
    kv = read * heads.kv_heads * heads.token_bytes
    return Floor(ours + kv, 2 * pairs * heads.heads * (heads.width + heads.value_width))


def turn_floor(
    queries: Tensor,
    keys: Tensor,
    values: Tensor | None,
    rope: Tensor | None,
    stored_itemsize: int | None = None,
) -> Floor:
    """Queries, keys, values and a table row per token are read; all but the row are written,
    keys and values in numbers of `stored_itemsize` bytes; None: of as many as they have.

    Each rotated number is multiplied with its cosine, its partner with a sine, and both are
    added.
    """
    written = keys.numel() + (0 if values is None else values.numel())
    moved = (2 * queries.numel() + written) * queries.itemsize
    moved += written * (stored_itemsize or queries.itemsize)
    if rope is None:
        return Floor(moved)
    table = len(queries) * 2 * rope.shape[2] * rope.itemsize
    turned = len(queries) * (queries.shape[1] + keys.shape[1]) * rope.shape[2]
    return Floor(moved + table, operations=3 * turned)


def _first_sees(count: int, length: int, window: int | None) -> int:
    """How many tokens the first query of a chunk sees."""
    return max(0, min(length - count + 1, window or length))


def _pairs(count: int, length: int, window: int | None) -> int:
    """The number of pairs of a query and a token that it sees."""
    first = length - count + 1
    if window is None or length <= window:
        return count * (first + length) // 2
    growing = max(0, window - first)
    return growing * (first + window - 1) // 2 + (count - growing) * window
