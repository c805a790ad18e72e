"""Layouts of models that keep a state beside KV; every byte of a state tells its place."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kv_transfer.layout import NUMBER_BYTES, KvLayout
from tests.fakes.sharded import Memory


@dataclass(frozen=True)
class Net:
    """Sizes of the whole model's layers; `aligned` is that of a layer's state, in bytes."""

    layers: int = 5
    key_heads: int = 4
    value_heads: int = 8
    key_width: int = 2
    value_width: int = 1
    taps: int = 2
    aligned: int = 64

    def beside(self, kv: KvLayout) -> KvLayout:
        """The layout with a state; its blocks have to be large enough for that of a layer."""
        keys, values = self.key_heads * self.key_width, self.value_heads * self.value_width
        numbers = values * self.key_width + self.taps * (2 * keys + values)
        size = NUMBER_BYTES * numbers // kv.tensor_parallel_size
        size = -(-size // self.aligned) * self.aligned
        return replace(
            kv,
            state_blocks=-(-self.layers // (kv.block_bytes[0] // size)),
            state_layers=self.layers,
            state_key_heads=self.key_heads,
            state_value_heads=self.value_heads,
            state_key_width=self.key_width,
            state_value_width=self.value_width,
            state_taps=self.taps,
            state_layer_bytes=size,
        )


def write_state(memory: Memory, blocks: Sequence[int]) -> None:
    """As an engine would, whose sequence has these blocks for its state."""
    for rank, start, wanted in _states(memory.layout, blocks):
        memory.ranks[rank][start : start + len(wanted)] = wanted


def wrong_states(memory: Memory, blocks: Sequence[int]) -> list[tuple[int, int]]:
    """The rank and address of all states that are not what they should be."""
    return [
        (rank, start)
        for rank, start, wanted in _states(memory.layout, blocks)
        if memory.ranks[rank][start : start + len(wanted)] != wanted
    ]


def _states(kv: KvLayout, blocks: Sequence[int]) -> Iterator[tuple[int, int, bytes]]:
    """The rank, address and bytes of each layer's state."""
    size, ranks = kv.state_layer_bytes, kv.tensor_parallel_size
    for layer in range(kv.state_layers):
        place, at = divmod(layer, kv.block_bytes[0] // size)
        start = blocks[place] * kv.block_bytes[0] + at * size
        for rank in range(ranks):
            yield rank, start, b"".join(_state(kv, layer, rank))


def _state(kv: KvLayout, layer: int, rank: int) -> Iterator[bytes]:
    key, value = kv.state_key_width * NUMBER_BYTES, kv.state_value_width * NUMBER_BYTES
    keys, values = _share(kv, kv.state_key_heads, rank), _share(kv, kv.state_value_heads, rank)
    for head in values:
        yield _kept(key * kv.state_value_width, layer, 0, 0, head)
    for tap in range(kv.state_taps):
        for part, heads, width in ((1, keys, key), (2, keys, key), (3, values, value)):
            for head in heads:
                yield _kept(width, layer, tap, part, head)


def _share(kv: KvLayout, heads: int, rank: int) -> range:
    each = heads // kv.tensor_parallel_size
    return range(rank * each, (rank + 1) * each)


def _kept(size: int, *where: int) -> bytes:
    mixed = zlib.crc32(bytes(where)) % 255
    return bytes((mixed + index) % 255 + 1 for index in range(size))
