"""KV memory of any layout, whose every byte tells where it belongs."""

import ctypes
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from msgspec.structs import replace

from engine.api import KvRegion
from kv_transfer.layout import GLOBAL, KvLayout

ROW_BYTES = 3


def layout(
    block_size: int,
    *,
    ranks: int = 1,
    heads: int = 2,
    layers: int = 2,
    parts: int = 2,
    row_bytes: int = ROW_BYTES,
) -> KvLayout:
    """Blocks as they are with `ranks` that share out `heads`."""
    rows = layers * parts * block_size * row_bytes
    each = max(1, heads // ranks) * rows
    return KvLayout(
        "uint8", block_size, heads, (each,) * ranks, ranks, layers, parts, head_dim=row_bytes
    )


def beside(kv: KvLayout, others: tuple[int, int, int]) -> KvLayout:
    """The same with global layers: how many, their heads, the bytes of their rows."""
    count, heads, size = others
    more = count * kv.parts * kv.block_size * size
    more *= max(1, heads // kv.tensor_parallel_size)
    sizes = tuple(each + more for each in kv.block_bytes)
    named = dict(zip(GLOBAL, others, strict=True))
    return replace(kv, block_bytes=sizes, **named)


def row(token: int, layer: int, part: int, head: int, size: int = ROW_BYTES) -> bytes:
    """What is kept of one token there: never zero, rarely the same twice."""
    mixed = zlib.crc32(bytes([token, layer, part, head])) % 255
    return bytes((mixed + index) % 255 + 1 for index in range(size))


@dataclass
class Memory:
    """One region for each rank."""

    layout: KvLayout
    num_blocks: int
    ranks: Sequence[bytearray] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [bytearray(size * self.num_blocks) for size in self.layout.block_bytes]

    @property
    def regions(self) -> Sequence[KvRegion]:
        return [
            KvRegion(_address(memory), size, self.num_blocks, "cpu")
            for memory, size in zip(self.ranks, self.layout.block_bytes, strict=True)
        ]

    def write(self, blocks: Sequence[int], tokens: range) -> None:
        """As an engine would, whose sequence has these blocks."""
        for place, wanted in self._rows(blocks, tokens):
            rank, start = place
            self.ranks[rank][start : start + len(wanted)] = wanted

    def clear(self) -> None:
        for memory in self.ranks:
            memory[:] = bytes(len(memory))

    def wrong(self, blocks: Sequence[int], tokens: range) -> list[tuple[int, int]]:
        """The rank and address of all rows that are not what they should be."""
        return [
            (rank, start)
            for (rank, start), wanted in self._rows(blocks, tokens)
            if self.ranks[rank][start : start + len(wanted)] != wanted
        ]

    def _rows(
        self, blocks: Sequence[int], tokens: range
    ) -> Iterator[tuple[tuple[int, int], bytes]]:
        kv = self.layout
        others = kv.global_layers, kv.global_kv_heads, kv.global_head_dim
        for rank, token in product(range(kv.tensor_parallel_size), tokens):
            block, within = blocks[token // kv.block_size], token % kv.block_size
            start, before = block * kv.block_bytes[rank], 0
            for layers, heads, size in ((kv.layers, kv.kv_heads, kv.head_dim), others):
                ours = _share(heads, rank, kv.tensor_parallel_size)
                for layer, part, head in product(range(layers), range(kv.parts), ours):
                    place = start + within * size
                    wanted = row(token, before + layer, part, head, size)
                    yield (rank, place), wanted
                    start += kv.block_size * size
                before += layers


def _share(heads: int, rank: int, ranks: int) -> range:
    """A rank's heads; several ranks have the same one if there are too few."""
    each = min(heads, max(1, heads // ranks))
    first = rank * each if heads >= ranks else heads and rank // (ranks // heads)
    return range(first, first + each)


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
