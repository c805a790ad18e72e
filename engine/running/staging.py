"""Uploads a batch's numbers to the device: one range of bytes, moved by one copy.

The offset of each field depends on the batch's size alone, so batches of one size have their
fields at the same addresses: a CUDA graph that was captured with one batch can be replayed
with the next. The device's buffer is never reallocated.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.device_batch import AttentionMetadata
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.kernels.lora import SortedRows
from engine.lora.active import sort_rows

ALIGNMENT = 128  # bytes
TABLE_STEP = 16  # widths of block tables are multiples of it: fewer kinds of launch
KEPT_SIZES = 64  # sizes whose views are cached: making them takes longer than filling them
PADDING = -1  # the slot of a padding row
LONG, SHORT, FLOAT = np.dtype(np.int64), np.dtype(np.int32), np.dtype(np.float32)
TORCH = {LONG: torch.int64, SHORT: torch.int32, FLOAT: torch.float32}
Type: TypeAlias = "np.dtype[np.int64] | np.dtype[np.int32] | np.dtype[np.float32]"
Kind: TypeAlias = tuple[Type, tuple[int, ...]]


class BatchSize(NamedTuple):
    """Rows of one forward pass, its `sequences`, the width of their block tables, how many LoRA
    adapters the model has, and how many blocks of `states` a sequence has beside its KV.
    """

    tokens: int
    sequences: int
    blocks: int
    adapters: int = 0
    states: int = 0


class Fields(NamedTuple):
    """The fields of a batch: each one's first byte, type and shape."""

    tokens: "Field"  # [tokens] the ids
    positions: "Field"  # [tokens]
    picks: "Field"  # [tokens] rows whose logits are wanted
    sources: "Field"  # [tokens] row of the last draw whose token it is; -1: as in `tokens`
    slots: "Field"  # [tokens] block * block_size + offset, or PADDING
    order: "Field"  # [tokens] rows by adapter (engine/kernels/lora.py:SortedRows), if there are
    offsets: "Field"  # [adapters + 1] any, here and above
    lengths: "Field"  # [sequences] context lengths, including these tokens; 0: padding
    firsts: "Field"  # [sequences + 1] rows where chunks begin, from the first chunk's on
    temperatures: "Field"  # [sequences] one for each pick, here and below
    top_k: "Field"
    top_p: "Field"
    min_p: "Field"
    keys: "Field"  # [sequences, 2]
    instead: "Field"
    states: "Field"  # [sequences, states] the blocks of those
    tables: "Field"  # [sequences, blocks], the last field


class Field(NamedTuple):
    """One field: its first byte, its type and its shape."""

    begin: int
    dtype: "Type"
    shape: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.begin + prod(self.shape) * self.dtype.itemsize


def layout(size: BatchSize) -> Fields:
    """The fields one after the other, each aligned."""
    tokens, sequences, blocks, adapters, states = size
    row = (tokens,)
    kinds: list[Kind] = [(LONG, row)] * 5
    kinds += [(SHORT, row if adapters else (0,)), (SHORT, (adapters + bool(adapters),))]
    line, pair = (sequences,), (sequences, 2)
    kinds += [(SHORT, line), (SHORT, (sequences + 1,)), (FLOAT, line), (SHORT, line)]
    kinds += [(FLOAT, line), (FLOAT, line), (LONG, pair), (SHORT, line)]
    kinds += [(SHORT, (sequences, states)), (SHORT, (sequences, blocks))]
    fields, begin = list[Field](), 0
    for dtype, shape in kinds:
        fields.append(Field(begin, dtype, shape))
        begin = -(-fields[-1].end // ALIGNMENT) * ALIGNMENT
    return Fields(*fields)


def num_bytes(size: BatchSize) -> int:
    """The size of all fields of such a batch."""
    return layout(size).tables.end


def table_blocks(blocks: int) -> int:
    """The width of block tables with room for `blocks`."""
    return -(-blocks // TABLE_STEP) * TABLE_STEP


class DeviceFields(NamedTuple):
    """The fields as tensors on the device; see Fields."""

    tokens: Tensor
    positions: Tensor
    picks: Tensor
    sources: Tensor
    slots: Tensor
    order: Tensor
    offsets: Tensor
    lengths: Tensor
    firsts: Tensor
    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    keys: Tensor
    instead: Tensor
    states: Tensor
    tables: Tensor

    @property
    def metadata(self) -> AttentionMetadata:
        """The fields that attention reads, and layers that keep a state."""
        return AttentionMetadata(
            self.positions, self.slots, self.lengths, self.firsts, self.tables, self.states
        )

    @property
    def sorted_rows(self) -> SortedRows:
        """The fields that linear layers with adapters read."""
        return SortedRows(self.order, self.offsets)

    def drawn_by(self, count: int) -> tuple[Tensor, ...]:
        """The sampling settings of the first `count` draws, in the order of RowSampling."""
        each = self.temperatures, self.top_k, self.top_p, self.min_p, self.keys, self.instead
        return tuple(one[:count] for one in each)


class _StagedBatch(NamedTuple):
    """A batch of one size in both buffers: all of its bytes, and its fields.

    Its addresses never change.
    """

    host: Tensor
    device: Tensor
    views: Sequence[NDArray[np.int64]]
    fields: DeviceFields


class Staging:
    """Two buffers for any batch up to `most`: one pinned on the host, one on the device."""

    def __init__(self, most: BatchSize, block_size: int, device: torch.device) -> None:
        size, on_gpu = num_bytes(most), device.type == "cuda"
        self.most, self.block_size = most, block_size
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=on_gpu)
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._bytes: NDArray[np.uint8] = self._host.numpy()
        self._copied = torch.cuda.Event() if on_gpu else None
        self._size: BatchSize | None = None
        self._known = list[tuple[Sequence[int], int]]()
        self._place = lru_cache(KEPT_SIZES)(self._placed)

    def stage(self, size: BatchSize, plan: Plan) -> DeviceFields:
        """Queue the upload of a batch, which must fit into `size`, behind earlier launches.

        The remaining rows are padding. Waits until the host's buffer is free of the last copy.
        """
        if self._copied is not None:
            self._copied.synchronize()
        place = self._place(size)
        self._write(size, place.views, plan)
        place.device.copy_(place.host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return place.fields

    def clear(self, size: BatchSize) -> DeviceFields:
        """Stage a batch of this size that consists of padding."""
        return self.stage(size, Plan((), (), (), ()))

    def _placed(self, size: BatchSize) -> _StagedBatch:
        fields = layout(size)
        end = fields.tables.end
        there = DeviceFields(*map(self._tensor, fields))
        return _StagedBatch(
            self._host[:end], self._device[:end], [*map(self._view, fields)], there
        )

    def _write(self, size: BatchSize, views: Sequence[NDArray[np.int64]], plan: Plan) -> None:
        ids, positions, picks, sources, slots, *others, states, tables = views
        order, adapter_offsets, lengths, firsts, *drawing = others
        spans, used = [*plan.singles, *plan.chunks], len(plan.tokens)
        ids[:used], ids[used:] = plan.tokens, 0
        picks[: len(plan.picks)] = plan.picks
        sources[:] = PADDING
        sources[: len(plan.sources)] = plan.sources
        draws = () if plan.sampling is None else plan.sampling.draws
        if draws:
            for view, numbers in zip(drawing, zip(*draws, strict=True), strict=True):
                view[: len(draws)] = numbers
        lengths[: len(spans)] = [span.start + span.length for span in spans]
        lengths[len(spans) :] = 0
        ends = [0, *accumulate(span.length for span in plan.chunks)]
        firsts[: len(ends)], firsts[len(ends) :] = ends, ends[-1]
        self._write_tables(size, tables, spans)
        for line, span in enumerate(spans if size.states else ()):
            states[line] = span.state
        positions[: len(plan.singles)] = [span.start for span in plan.singles]
        row = len(plan.singles)
        for span in plan.chunks:
            positions[row : row + span.length] = np.arange(span.start, span.start + span.length)
            row += span.length
        positions[used:] = 0
        if size.adapters:
            order[:], adapter_offsets[:] = sort_rows(plan, size.tokens, size.adapters)
        counts = np.array([span.length for span in spans], np.int64)
        lines = np.repeat(np.arange(len(spans)), counts)
        index, offsets = np.divmod(positions[:used], self.block_size)
        slots[:used] = tables[lines, index].astype(np.int64) * self.block_size + offsets
        slots[used:] = PADDING

    def _write_tables(
        self, size: BatchSize, tables: NDArray[np.int64], spans: Sequence[Span]
    ) -> None:
        """Write block tables, or just new blocks if the last batch had the list in that line.

        A sequence's list of blocks only grows, and a preemption gives it a new list.
        """
        known = self._known if size == self._size else []
        self._size = size
        for line, span in enumerate(spans):
            before = (
                known[line][1] if line < len(known) and known[line][0] is span.blocks else 0
            )
            count = len(span.blocks)
            if count > before:
                tables[line, before:count] = span.blocks[before:count]
        self._known = [(span.blocks, len(span.blocks)) for span in spans]

    def _view(self, field: Field) -> NDArray[np.int64]:
        view = self._bytes[field.begin : field.end].view(field.dtype)
        numbers: NDArray[np.int64] = view.reshape(field.shape)
        return numbers

    def _tensor(self, field: Field) -> Tensor:
        part = self._device[field.begin : field.end]
        return part.view(TORCH[field.dtype]).view(field.shape)
