"""Which kinds of kernels checksums of blocks launch, and which their warm-up did not: none run.

As tests/fakes/launches.py does it for steps.

    python -m tests.fakes.sum_launches
"""

import json
from collections.abc import Iterator

from kv_transfer.checking import CheckLevel
from kv_transfer.layout import KvLayout
from tests.fakes.launches import named_only

BLOCKS = 64


def _main() -> None:
    found = named_only()
    late, early = list[str](), set[str]()
    for run in _sums():
        before = set(found)
        next(run)
        early |= {one.partition("[")[0] for one in set(found) - before}
        before = set(found)
        next(run)
        late += sorted(set(found) - before)
        found.clear()
    print(json.dumps([sorted(early), late]))  # noqa: T201  it is what the parent reads


def _sums() -> Iterator[Iterator[None]]:
    """Of blocks of several sizes, each with peers that have others."""
    for ours, theirs, head_dim in (
        (16, 4, 8),
        (4, 16, 8),
        (16, 32, 128),
        (3, 6, 80),
        (6, 3, 9),
        (8, 4, 9),
    ):
        yield _of_one(ours, theirs, head_dim)


def _of_one(ours: int, theirs: int, head_dim: int) -> Iterator[None]:
    import torch

    from engine.api import KvRegion
    from kv_transfer.blocks.mapping import map_blocks
    from kv_transfer.integrity.checksums import BlockChecksums

    here, there = _layout(ours, head_dim), _layout(theirs, head_dim)
    memory = torch.zeros((BLOCKS, here.block_bytes[0]), dtype=torch.uint8)
    region = KvRegion(memory.data_ptr(), here.block_bytes[0], BLOCKS, "cpu")
    sums, how = BlockChecksums([region], kernels=True), map_blocks(there, here)
    sums.warm()
    yield
    for level in CheckLevel.SAMPLED, CheckLevel.FULL:
        for count in (1, 2, 3, 5, 16, 17, 48):
            sums.of(range(count), level)
            most = min(count, BLOCKS * how.our_slots // how.their_slots)
            slots = [range(at, at + how.their_slots) for at in range(most)]
            sums.of_pieces(how, slots, level)
    yield


def _layout(block_size: int, head_dim: int) -> KvLayout:
    rows = 3 * 2 * 2 * block_size
    size = rows * head_dim * 4
    return KvLayout("float32", block_size, 2, (size,), layers=3, parts=2, head_dim=head_dim)


if __name__ == "__main__":
    _main()
