"""Checks the arguments of decode and prefill attention."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from engine.kernels.rows import E4M3
from engine.kernels.style import AttentionStyle

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ENDLESS = 1 << 30  # tokens: what is beyond fits no int32
INTERPRETED = 4  # programs at once, as far as a plan is concerned, where there is no GPU


@dataclass(frozen=True, slots=True)
class Heads:
    """Query heads, the KV heads they share, and how wide rows of keys and values are.

    `parts` 1: a key's first `value_width` numbers are its value. A number has `itemsize` bytes,
    and `stored_itemsize` in KV memory; None: as many.
    """

    heads: int
    kv_heads: int
    width: int
    value_width: int
    parts: int
    itemsize: int
    stored_itemsize: int | None = None

    @property
    def sharing(self) -> int:
        """Query heads of one KV head."""
        return self.heads // self.kv_heads

    @property
    def token_bytes(self) -> int:
        """What is read of one token for one KV head."""
        values = self.value_width if self.parts == 2 else 0
        return (self.width + values) * (self.stored_itemsize or self.itemsize)

    @property
    def token_room(self) -> int:
        """What that takes in shared memory, in bytes, in the type that it is multiplied in."""
        values = self.padded if self.parts == 2 else 0
        return (self.padded + self.rest + values) * self.itemsize

    @property
    def rest(self) -> int:
        """What a key has beyond its leading `value_width` numbers, padded; 0: nothing."""
        beyond = self.width - self.value_width
        return max(16, power_of_two(beyond)) if beyond else 0

    @property
    def padded(self) -> int:
        """`value_width`, as wide as a product takes it."""
        return max(16, power_of_two(self.value_width))


@dataclass(frozen=True, slots=True)
class PagedCall:
    """A call that fits together.

    `window` is there if the style has one, also where tables are shorter: with and without are
    two kernels, and which it is must not change while requests wait.
    """

    heads: Heads
    memory: Tensor
    most_tokens: int
    window: int | None

    @classmethod
    def of(
        cls,
        queries: Tensor,
        memory: Tensor,
        tables: Tensor,
        style: AttentionStyle,
        value_width: int | None,
    ) -> "PagedCall":
        """Raises ValueError for what does not fit."""
        _, _, parts, kv_heads, block_size, width = memory.shape
        sizes = queries.shape[1], kv_heads, width, value_width or width, parts
        heads = Heads(*sizes, queries.itemsize, memory.itemsize)
        _check(queries, memory, heads)
        if style.sinks is not None and style.sinks.shape != (heads.heads,):
            raise ValueError(f"sinks {list(style.sinks.shape)} are not for {heads.heads} heads")
        if tables.dim() != 2 or tables.stride(1) != 1 or tables.dtype is not torch.int32:
            raise ValueError(
                f"tables are no rows of int32: {list(tables.shape)} {tables.dtype}"
            )
        most = tables.shape[1] * block_size
        window = None if style.window is None else min(style.window, ENDLESS)
        return cls(heads, memory, most, window)

    def output(self, queries: Tensor, out: Tensor | None) -> Tensor:
        """[rows, heads * value_width]: `out`, if it is that, or new."""
        shape = len(queries), self.heads.heads * self.heads.value_width
        if out is None:
            return queries.new_empty(shape)
        if out.shape != shape or out.dtype is not queries.dtype or not out.is_contiguous():
            raise ValueError(f"out {list(out.shape)} {out.dtype} is not {list(shape)}, whole")
        return out

    def layer_offset(self, layer: int) -> int:
        """Where the layer begins in a block, in numbers."""
        if not 0 <= layer < self.memory.shape[1]:
            raise ValueError(f"layer {layer} is none of {self.memory.shape[1]}")
        return layer * self.memory.stride(1)

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """From block to block, head to head, token to token, and from a key to its value."""
        block, _, part, head, token, _ = self.memory.stride()
        return block, head, token, part if self.heads.parts == 2 else 0


def _check(queries: Tensor, memory: Tensor, heads: Heads) -> None:
    if queries.dim() != 3 or queries.shape[2] != heads.width:
        raise ValueError(f"queries {list(queries.shape)} are not [.., heads, {heads.width}]")
    if heads.heads % heads.kv_heads:
        raise ValueError(f"{heads.heads} query heads share {heads.kv_heads} KV heads unevenly")
    if not 0 < heads.value_width <= heads.width or heads.parts not in (1, 2):
        raise ValueError(
            f"a row of {heads.width} in {heads.parts} parts has no value of {heads.value_width}"
        )
    if queries.stride(2) != 1 or memory.stride(5) != 1:
        raise ValueError("the numbers of a head must lie behind one another")
    if memory.dtype not in (queries.dtype, E4M3) or queries.dtype not in DTYPES:
        raise ValueError(f"queries are {queries.dtype}, KV memory is {memory.dtype}")


def power_of_two(number: int) -> int:
    """The next one, or the number itself if it is one."""
    return 1 << max(0, number - 1).bit_length()


def processors(device: torch.device) -> int:
    """How many multiprocessors the device has."""
    return _counted(device) if device.type == "cuda" else INTERPRETED


@lru_cache(maxsize=64)
def _counted(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
