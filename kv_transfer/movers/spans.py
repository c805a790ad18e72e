"""Where the pieces of slots are in one side's memory, as arrays for thousands of them.

Both sides of a transfer list the same bytes in the same order, so it does not matter which side
reads: the n-th byte there is the n-th byte here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from kv_transfer.blocks.mapping import BlockMapping
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.regions import Region, RemoteRegion

Numbers = NDArray[np.int64]
Part = tuple[int, int, int]
"""A region, an offset in slot 0 of its blocks, and a size."""
SlotRuns = Sequence[tuple[int, int]]
"""Runs of slots: the first slot, and how many."""
Regions = Sequence[Region] | Sequence[RemoteRegion]


class SlotLayout(msgspec.Struct, frozen=True, array_like=True):
    """One side's slots: `per_block` of them, `step_bytes` apart, each made of `parts`.

    `by_slot`: all parts of a slot come before the next slot; otherwise all slots of a part come
    before the next part.
    """

    per_block: int
    step_bytes: int
    by_slot: bool
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Spans:
    """Ranges of memory, in order, as three columns."""

    region: Numbers
    address: Numbers
    size: Numbers


def slot_layouts(cut: BlockMapping) -> tuple[SlotLayout | None, SlotLayout | None]:
    """The slots to ask the other side for, and where to put them; None: whole blocks."""
    if not cut.pieces:
        return None, None
    there = tuple((one.their_rank, one.their_offset, one.size) for one in cut.pieces)
    here = tuple((one.our_rank, one.our_offset, one.size) for one in cut.pieces)
    theirs = SlotLayout(cut.their_slots, cut.step_bytes, cut.by_slot, there)
    return theirs, SlotLayout(cut.our_slots, cut.our_step, cut.by_slot, here)


def stretches(
    slots: SlotLayout, runs: SlotRuns, regions: Regions
) -> Iterator[tuple[int, int, int]]:
    """Region, offset in it and size of each range, in order, neighbours merged; IndexError."""
    (found,) = joined(spans(slots, runs, regions))
    start = np.array([one.address for one in regions], dtype=np.int64)[found.region]
    columns = found.region, found.address - start, found.size
    yield from zip(*(column.tolist() for column in columns), strict=True)


def spans(slots: SlotLayout, runs: SlotRuns, regions: Regions) -> Spans:
    """Every part of every slot of the runs; IndexError if one is out of range."""
    _check(slots, runs, regions)
    ids = np.concatenate([np.arange(first, first + count) for first, count in runs])
    block, within = np.divmod(ids, slots.per_block)
    region, offset, size = np.array(slots.parts, dtype=np.int64).T
    start = np.array([one.address for one in regions], dtype=np.int64)
    pitch = np.array([one.block_bytes for one in regions], dtype=np.int64)
    address = np.outer(pitch[region], block) + within * slots.step_bytes  # [parts, slots]
    address += (start[region] + offset)[:, None]
    columns = np.broadcast_arrays(region[:, None], address, size[:, None])
    return Spans(*(_flat(column, slots.by_slot) for column in columns))


def both_sides(order: ReadOrder, theirs: Regions, ours: Regions) -> tuple[Spans, Spans]:
    """The ranges of a read in pieces, there and here; IndexError if one is out of range."""
    wanted, into = slot_layouts(order.cut)
    assert wanted is not None
    assert into is not None
    there = spans(wanted, [(run.theirs, run.count) for run in order.runs], theirs)
    here = spans(into, [(run.ours, run.count) for run in order.runs], ours)
    there, here = joined(there, here)
    return there, here


def joined(*sides: Spans) -> tuple[Spans, ...]:
    """Merge ranges that are neighbours on all of these sides."""
    size = sides[0].size
    begins = np.zeros(len(size), dtype=bool)
    begins[0] = True
    for side in sides:
        ends = side.address[:-1] + side.size[:-1]
        begins[1:] |= (side.address[1:] != ends) | (side.region[1:] != side.region[:-1])
    first = np.flatnonzero(begins)
    total = np.add.reduceat(size, first)
    return tuple(Spans(side.region[first], side.address[first], total) for side in sides)


def _flat(column: Numbers, by_slot: bool) -> Numbers:
    return (column.T if by_slot else column).ravel()


def _check(slots: SlotLayout, runs: SlotRuns, regions: Regions) -> None:
    if slots.per_block < 1 or slots.step_bytes < 1 or not slots.parts or not runs:
        raise IndexError(f"{slots.per_block} slots, {slots.step_bytes} bytes apart, in {runs}")
    last = (slots.per_block - 1) * slots.step_bytes
    for number, offset, size in slots.parts:
        if not 0 <= number < len(regions):
            raise IndexError(f"region {number} is not one of {len(regions)}")
        if offset < 0 or size < 1 or offset + last + size > regions[number].block_bytes:
            raise IndexError(f"{size} bytes at {offset} do not lie in a block")
    for number in {part[0] for part in slots.parts}:
        for first, count in runs:
            if count < 1:
                raise IndexError(f"a run of {count} slots")
            regions[number].at(first // slots.per_block)
            regions[number].at((first + count - 1) // slots.per_block)
