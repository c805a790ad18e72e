"""What a block's checksum is of."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.api import KvRegion
from kv_transfer.checking import LINE_BYTES, STRIDE_BYTES, CheckLevel
from kv_transfer.integrity.checksums import (
    BYTES_AT_ONCE,
    BlockChecksums,
    combine_regions,
    gather,
)

BLOCKS = 3
SIZES = [1, 63, 64, 65, 1023, 1024, 1025, 1088, 4096, 5000]


def memory_of(block_bytes: int) -> tuple[bytearray, KvRegion]:
    memory = bytearray((BLOCKS * block_bytes * bytes(range(251)))[: BLOCKS * block_bytes])
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return memory, KvRegion(address, block_bytes, BLOCKS, "cpu")


@given(size=st.sampled_from(SIZES), data=st.data())
def test_any_bit_changes_the_full_checksum_of_its_block_alone(
    size: int, data: st.DataObject
) -> None:
    memory, region = memory_of(size)
    sums = BlockChecksums([region])
    before = sums.of(range(BLOCKS), CheckLevel.FULL)
    block = data.draw(st.integers(0, BLOCKS - 1))
    place = block * size + data.draw(st.integers(0, size - 1))
    memory[place] ^= 1 << data.draw(st.integers(0, 7))
    after = sums.of(range(BLOCKS), CheckLevel.FULL)
    changed = [one for one in range(BLOCKS) if before[one] != after[one]]
    assert changed == [block]


@given(size=st.sampled_from(SIZES), data=st.data())
def test_damage_of_a_stride_anywhere_changes_the_sampled_checksum(
    size: int, data: st.DataObject
) -> None:
    memory, region = memory_of(size)
    sums = BlockChecksums([region])
    (before,) = sums.of([1], CheckLevel.SAMPLED)
    length = min(size, STRIDE_BYTES - LINE_BYTES + 1)
    start = size + data.draw(st.integers(0, size - length))
    for place in range(start, start + length):
        memory[place] ^= 0xFF
    assert sums.of([1], CheckLevel.SAMPLED) != [before]


def test_a_sampled_checksum_is_not_of_every_byte() -> None:
    """It is what it says, and not the full one by another name."""
    memory, region = memory_of(4096)
    sums = BlockChecksums([region])
    before = sums.of([0], CheckLevel.SAMPLED)
    memory[LINE_BYTES] ^= 1
    assert sums.of([0], CheckLevel.SAMPLED) == before
    memory[STRIDE_BYTES] ^= 1
    assert sums.of([0], CheckLevel.SAMPLED) != before


def test_of_the_last_part_of_a_stride_one_line_is_sampled() -> None:
    memory, region = memory_of(STRIDE_BYTES + 2 * LINE_BYTES)
    sums = BlockChecksums([region])
    before = sums.of([0], CheckLevel.SAMPLED)
    memory[STRIDE_BYTES + LINE_BYTES] ^= 1
    assert sums.of([0], CheckLevel.SAMPLED) == before
    memory[STRIDE_BYTES + LINE_BYTES - 1] ^= 1
    assert sums.of([0], CheckLevel.SAMPLED) != before


def test_sums_of_several_regions_are_combined_block_by_block() -> None:
    each = [[1, 2, 3], [4, 5, 6]]
    alone = [combine_regions([[one], [two]]) for one, two in zip(*each, strict=True)]
    assert combine_regions(each) == [one for (one,) in alone]
    assert len(set(combine_regions(each))) == 3
    assert combine_regions(each[:1]) == each[0]


@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
def test_blocks_that_changed_places_are_told_apart(level: CheckLevel) -> None:
    _, region = memory_of(1500)
    one, two, three = BlockChecksums([region]).of([0, 1, 2], level)
    assert len({one, two, three}) == 3


@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
def test_each_region_counts(level: CheckLevel) -> None:
    (first, one), (second, two) = memory_of(64), memory_of(100)
    sums = BlockChecksums([one, two])
    assert sums.block_bytes == 164
    before = sums.of([2], level)
    for memory, place in ((first, 2 * 64), (second, 2 * 100)):
        memory[place] ^= 1
        assert sums.of([2], level) != before
        memory[place] ^= 1
    assert sums.of([2], level) == before


@pytest.mark.parametrize("block", [-1, BLOCKS])
def test_there_is_no_checksum_of_what_is_no_block(block: int) -> None:
    with pytest.raises(IndexError):
        BlockChecksums([memory_of(16)[1]]).of([block], CheckLevel.FULL)


@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
@pytest.mark.parametrize("size", SIZES)
def test_a_tensor_on_a_device_has_the_same_parts(size: int, level: CheckLevel) -> None:
    """The tensor is on the CPU here; what is done to it is the same."""
    memory = (np.arange(BLOCKS * size) % 251).astype(np.uint8).reshape(BLOCKS, size)
    seen = gather(memory, [2, 0], level)
    assert len({one.tobytes() for one in seen}) == 2
    assert np.array_equal(seen, gather(torch.from_numpy(memory), [2, 0], level))


def test_levels_have_the_names_of_the_setting() -> None:
    assert [CheckLevel.named(name) for name in ("off", "sampled", "full")] == sorted(CheckLevel)


def test_a_block_that_is_large_for_a_turn_is_looked_at_alone() -> None:
    """None at a time would never end."""
    region = KvRegion(0, 2 * BYTES_AT_ONCE, 1, "cpu")
    assert BlockChecksums([region]).blocks_at_once == 1


@pytest.mark.parametrize("blocks", [[-1, 0], [1, 2]])
def test_memory_beside_the_blocks_is_not_read(blocks: list[int]) -> None:
    memory = bytearray(64 * 4)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    sums = BlockChecksums([KvRegion(start + 64, 64, 2, "cpu")])
    with pytest.raises(IndexError, match=r"block (-1|2) "):
        sums.of(blocks, CheckLevel.FULL)
