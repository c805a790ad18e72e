"""Checksums of blocks on a device are XXH3's, and pieces of blocks go where they should."""

import json
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.api import KvRegion
from kv_transfer.blocks.checksum_mapping import (
    checksum_parts,
    sink_checksum_mapping,
    source_checksum_mapping,
    source_checksums,
)
from kv_transfer.blocks.mapping import map_blocks
from kv_transfer.blocks.state_mapping import map_states
from kv_transfer.checking import CheckLevel
from kv_transfer.gpu.moving import bytes_moved as moved
from kv_transfer.gpu.moving import move
from kv_transfer.gpu.sums import bytes_moved, operations, sums
from kv_transfer.layout import KvLayout
from tests.fakes.sharded import layout as plain_layout
from tests.fakes.sharded_states import Net
from tests.kernels.ahead import compiled, compiling

if TYPE_CHECKING:
    from kv_transfer.integrity.checksums import BlockChecksums

BLOCKS = 5


def sums_of(region: KvRegion, *, kernels: bool = False) -> "BlockChecksums":
    """Where there is no xxhash, nothing to compare with, the rest of this file runs."""
    pytest.importorskip("xxhash")
    from kv_transfer.integrity.checksums import BlockChecksums

    return BlockChecksums([region], kernels=kernels)


def memory_of(block_bytes: int, device: torch.device) -> tuple[Tensor, KvRegion]:
    memory = torch.randint(0, 256, (BLOCKS, block_bytes), dtype=torch.uint8, device=device)
    return memory, KvRegion(memory.data_ptr(), block_bytes, BLOCKS, str(device))


@pytest.mark.parametrize("lines", [4, 16, 17, 33, 64, 150])
def test_a_sum_is_xxh3s(lines: int, device: torch.device) -> None:
    xxh3_64_intdigest = pytest.importorskip("xxhash").xxh3_64_intdigest
    memory, _ = memory_of(64 * lines + 128, device)
    found = sums(memory, [3, 0, 4], lines, 64)
    host = memory[:, : 64 * lines].cpu().contiguous().numpy()
    assert found == [xxh3_64_intdigest(host[block].tobytes()) for block in (3, 0, 4)]


@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
@pytest.mark.parametrize("size", [64, 512, 1000, 4096, 5184, 20_480, 20_540])
def test_a_device_says_what_the_host_says(
    size: int, level: CheckLevel, device: torch.device
) -> None:
    """Also where it has to be copied: of sizes that are no whole lines, and very small ones."""
    memory, region = memory_of(size, device)
    host = memory.cpu()
    here = KvRegion(host.data_ptr(), size, BLOCKS, "cpu")
    blocks = [4, 1, 1, 0]
    want = sums_of(here).of(blocks, level)
    assert sums_of(region, kernels=True).of(blocks, level) == want
    assert sums_of(region, kernels=True).of([], level) == []
    with pytest.raises(IndexError):
        sums_of(region, kernels=True).of([BLOCKS], level)


def test_a_device_is_asked_for_a_prompt_at_a_time(device: torch.device) -> None:
    """2,000 tokens of an 8B model in 125 blocks: a launch takes longer than its bytes."""
    from kv_transfer.integrity.checksums import BlockChecksums

    region = KvRegion(memory_of(64 * 20, device)[1].address, 2 << 20, 125, "cpu")
    host, on_device = BlockChecksums([region]), BlockChecksums([region], kernels=True)
    on_device._look()
    assert host.blocks_at_once == 8
    assert on_device.blocks_at_once >= 125


def test_a_bit_anywhere_changes_a_full_sum_of_its_block_alone(device: torch.device) -> None:
    memory, region = memory_of(64 * 20, device)
    device_sums = sums_of(region, kernels=True)
    before = device_sums.of(range(BLOCKS), CheckLevel.FULL)
    memory[2, random.randrange(64 * 20)] ^= 1 << random.randrange(8)
    memory.cpu()  # blocks are final before their sums are asked for, on another stream
    after = device_sums.of(range(BLOCKS), CheckLevel.FULL)
    assert [one for one in range(BLOCKS) if before[one] != after[one]] == [2]


def test_which_blocks_are_whole_lines() -> None:
    pytest.importorskip("xxhash")
    from kv_transfer.integrity.checksums import lines_of

    assert lines_of(2 << 20, CheckLevel.FULL) == (32_768, 64)
    assert lines_of(2 << 20, CheckLevel.SAMPLED) == (2048, 1024)
    assert lines_of(4096 + 64, CheckLevel.SAMPLED) == (5, 1024)
    assert lines_of(4096 + 8, CheckLevel.SAMPLED) is None
    assert lines_of(192, CheckLevel.FULL) is None


def layout(block_size: int, ranks: int = 1) -> KvLayout:
    """3 layers of 2 heads, 8 numbers of 4 bytes for each token."""
    size = 3 * 2 * 2 * block_size * 32 // ranks
    return KvLayout("float32", block_size, 2, (size,) * ranks, ranks, 3, 2, head_dim=8)


@pytest.mark.parametrize(("theirs", "ours"), [(16, 4), (4, 16), (8, 4)])
def test_blocks_of_another_size_are_put_together_on_the_device(
    theirs: int, ours: int, device: torch.device
) -> None:
    there, here = layout(theirs), layout(ours)
    how = map_blocks(there, here)
    memory, region = memory_of(here.block_bytes[0], device)
    host = memory.cpu()
    plain = KvRegion(host.data_ptr(), here.block_bytes[0], BLOCKS, "cpu")
    places = random.sample(range(BLOCKS * how.our_slots), how.their_slots * 1)
    slots = [places, places[::-1]]
    for level in (CheckLevel.SAMPLED, CheckLevel.FULL):
        want = sums_of(plain).of_pieces(how, slots, level)
        assert sums_of(region, kernels=True).of_pieces(how, slots, level) == want


@pytest.mark.parametrize("ours", [8, 16, 32])
def test_what_more_ranks_will_have_is_put_together_on_the_device(
    ours: int, device: torch.device
) -> None:
    """One checksum of both ranks' parts of a slot, in blocks as large as ours or otherwise."""
    there, here = layout(16), layout(ours, ranks=2)
    seen = source_checksum_mapping(there, here)
    memory, region = memory_of(there.block_bytes[0], device)
    host = memory.cpu()
    plain = KvRegion(host.data_ptr(), there.block_bytes[0], BLOCKS, "cpu")
    slots = [(4 * seen.our_slots,), (seen.our_slots - 1,)]
    for level in (CheckLevel.SAMPLED, CheckLevel.FULL):
        want = sums_of(plain).of_pieces(seen, slots, level)
        assert sums_of(region, kernels=True).of_pieces(seen, slots, level) == want
        assert len(set(want)) == 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_states_are_put_together_on_the_device(ranks: int, device: torch.device) -> None:
    """As either side does it, with twice as many ranks on one side."""
    net = Net(key_width=8, value_width=16, aligned=4)
    few = net.beside(plain_layout(16, heads=4, ranks=ranks, row_bytes=128))
    many = net.beside(plain_layout(16, heads=4, ranks=2 * ranks, row_bytes=128))
    for there, here in ((few, many), (many, few)):
        seen, way = source_checksums(there, here).state, map_states(there, here)
        assert seen is not None
        assert way is not None
        for kv, how in ((there, seen), (here, sink_checksum_mapping(way))):
            _, part = checksum_parts(how)[0]
            memory, region = memory_of(kv.block_bytes[0], device)
            host = memory.cpu()
            plain = KvRegion(host.data_ptr(), kv.block_bytes[0], BLOCKS, "cpu")
            slots = [(4 * part.our_slots,), (part.our_slots - 1,), (0,)]
            for level in (CheckLevel.SAMPLED, CheckLevel.FULL):
                want = sums_of(plain).of_pieces(part, slots, level)
                assert sums_of(region, kernels=True).of_pieces(part, slots, level) == want
                assert len(set(want)) == 3


@pytest.mark.parametrize(("unit", "more"), [(1, 0), (8, 0), (8, 3)])
def test_pieces_go_where_they_should_and_nowhere_else(
    unit: int, more: int, device: torch.device
) -> None:
    source = torch.randint(0, 256, (20_000,), dtype=torch.uint8, device=device)
    target = torch.full_like(source, 7)
    want = target.clone()
    start, end = np.array([0, 700, 1300]) * unit, np.array([100, 0, 400]) * unit
    size = np.array([80, 8, 600]) * unit + more
    move(start + source.data_ptr(), end + target.data_ptr(), size, device)
    for begin, to, count in zip(start, end, size, strict=True):
        want[to : to + count] = source[begin : begin + count]
    assert torch.equal(target, want)
    move(start[:0], end[:0], size[:0], device)


@pytest.mark.parametrize(
    ("blocks", "heads", "half"),
    [(3, 4, 24), pytest.param(125, 512, 2048, marks=pytest.mark.gpu)],
)
def test_blocks_are_parted(blocks: int, heads: int, half: int, device: torch.device) -> None:
    """Each into two of half as many tokens; real ones are of 16 tokens of an 8B model."""
    source = torch.randint(0, 256, (blocks, heads, 2, half), dtype=torch.uint8, device=device)
    target = torch.full((blocks, 2, heads, half), 7, dtype=torch.uint8, device=device)
    block, head, part = np.indices((blocks, heads, 2), dtype=np.int64)
    start = source.data_ptr() + ((block * heads + head) * 2 + part) * half
    end = target.data_ptr() + ((block * 2 + part) * heads + head) * half
    move(start.ravel(), end.ravel(), np.full(start.size, half), device)
    assert torch.equal(target, source.transpose(1, 2))


def test_floors_count_bytes_once() -> None:
    assert bytes_moved(3, 2048) == 3 * (2048 * 64 + 8)
    assert operations(3, 2048) == 3 * 2048 * 8 * 4
    assert moved(100) == 200


def test_they_compile_for_hopper() -> None:
    memory = "torch.zeros(4, 2 << 20, dtype=torch.uint8)"
    found = compiled(
        "kv_transfer.gpu.sums",
        f"launched({memory}, [1, 2], 2048, 1024)",
        f"launched({memory}, [1, 2], 32768, 64)",
    )
    found |= compiled(
        "kv_transfer.gpu.moving",
        "[move(np.array([1 << 40]), np.array([1 << 41]), np.array([one]), torch.device('cpu'))"
        " for one in (4096, 4097)]",
    )
    assert sorted(found) == ["_chain", "_move", "_sum"]
    assert not any(one["spilled"] for one in found.values())


def test_nothing_is_compiled_while_peers_wait() -> None:
    pytest.importorskip("xxhash")
    early, late = json.loads(compiling("tests.fakes.sum_launches"))
    assert late == []
    assert set(early) == {"_sum", "_chain", "_move"}


@pytest.mark.gpu
@pytest.mark.parametrize("level", [CheckLevel.SAMPLED, CheckLevel.FULL])
def test_real_blocks(level: CheckLevel, device: torch.device) -> None:
    """Of 16 tokens of an 8B model: 2 MiB each."""
    memory = torch.randint(0, 256, (200, 2 << 20), dtype=torch.uint8, device=device)
    host = memory.cpu()
    there = KvRegion(memory.data_ptr(), 2 << 20, 200, str(device))
    here = KvRegion(host.data_ptr(), 2 << 20, 200, "cpu")
    blocks = random.sample(range(200), 125)
    assert sums_of(there).of(blocks, level) == sums_of(here).of(blocks, level)
