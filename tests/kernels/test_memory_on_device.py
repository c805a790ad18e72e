"""Copies between main memory, a file and a device: as on the CPU, and in the right order."""

from pathlib import Path

import pytest
import torch

from engine.checkpoints.staging import DeviceUploader
from engine.tiers.host_memory import HostMemory
from engine.tiers.moves import Copy

pytestmark = pytest.mark.gpu
BLOCKS, BLOCK_BYTES = 64, 1 << 20


def random_bytes(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)


def test_blocks_go_out_and_come_back_between_two_batches(device: torch.device) -> None:
    blocks = random_bytes(BLOCKS, BLOCK_BYTES, device=device)
    before, host = blocks.cpu(), HostMemory(blocks, BLOCKS)
    out = host.carry_out([Copy(block, block, out=True) for block in range(BLOCKS)])
    blocks.zero_()  # the next batch, which the copies must have come before
    host.carry_out([Copy(block, block, out=False) for block in range(BLOCKS)])
    after = blocks.clone()  # another, which must come behind
    out.wait()
    assert torch.equal(host.slots, before)
    assert torch.equal(after.cpu(), before)


def test_a_file_comes_onto_the_device_through_two_pinned_buffers(
    device: torch.device, tmp_path: Path
) -> None:
    content = random_bytes(10_000_001, device=torch.device("cpu"))
    path = tmp_path / "bytes"
    path.write_bytes(content.numpy().tobytes())
    staging = DeviceUploader.on(device, 1 << 20)
    assert all(buffer.memory.is_pinned() for buffer in staging.buffers)
    with path.open("rb") as file:
        for first, count in ((0, 10_000_001), (17, 3), (5_000_000, 3_000_000)):
            read = staging.read(file.fileno(), first, count)
            assert torch.equal(read.cpu(), content[first : first + count])


def test_nixl_reads_from_one_stretch_of_the_device_into_another(device: torch.device) -> None:
    nixl = pytest.importorskip("kv_transfer.movers.nixl")
    pytest.importorskip("msgspec")
    from engine.api import KvRegion
    from kv_transfer.layout import KvLayout
    from kv_transfer.ledger.reads import ReadOrder
    from kv_transfer.regions import BlockRun, describe
    from kv_transfer.wire import Welcome

    theirs = random_bytes(BLOCKS, BLOCK_BYTES, device=device)
    ours = torch.zeros_like(theirs)
    regions = [
        KvRegion(one.data_ptr(), BLOCK_BYTES, BLOCKS, str(one.device)) for one in (theirs, ours)
    ]
    torch.cuda.synchronize()
    source, sink = (
        nixl.NixlMover.start(name, [region])
        for name, region in zip(("source", "sink"), regions, strict=True)
    )
    layout, address = KvLayout("bytes", 1, 1, (BLOCK_BYTES,)), ("source", 1)
    told = describe(regions[0])
    sink.connect(address, Welcome("source", "same", layout, (told,), (source.card,), "here"))
    sink.read(ReadOrder(1, address, [BlockRun(3, 10, 20)]))
    ended = list(sink.poll())
    while not ended:
        source.poll()
        ended = list(sink.poll())
    assert ended == [(1, None)]
    assert torch.equal(ours[10:30], theirs[3:23])
    assert not ours[:10].any()
    assert not ours[30:].any()
