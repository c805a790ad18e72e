"""Whether a mover still writes to blocks of which it has said that it does not.

`python -m tests.contract.quiet` tries it with NIXL over what UCX_TLS says, which is fixed for
the lifetime of a process.
"""

import ctypes
from collections.abc import Callable, Sequence

from engine.api import KvRegion
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.mover import Mover
from kv_transfer.movers.nixl import NixlMover
from kv_transfer.regions import BlockRun, describe
from kv_transfer.wire import Welcome

BLOCK, BLOCKS, AT = 1 << 20, 32, ("source", 1)
POISON = b"p" * BLOCK * BLOCKS
POLLS, LAST_POLLS = range(12), 300
Start = Callable[[str, Sequence[KvRegion]], Mover]


def writes_on(start: Start) -> list[int]:
    """After how many polls it was parted from, and wrote to memory once its read had ended."""
    theirs, ours = bytearray(b"a" * BLOCK * BLOCKS), bytearray(BLOCK * BLOCKS)
    regions = [_region(theirs)]
    source, sink = start("source", regions), start("sink", [_region(ours)])
    layout = KvLayout("bytes", 1, 1, (BLOCK,))
    told = tuple(map(describe, regions))
    welcome = Welcome("source", "same", layout, told, (source.card,), "machine")
    try:
        return [polls for polls in POLLS if _writes_on(source, sink, welcome, ours, polls)]
    finally:
        sink.close()
        source.close()


def _writes_on(
    source: Mover, sink: Mover, welcome: Welcome, ours: bytearray, polls: int
) -> bool:
    sink.connect(AT, welcome)
    sink.read(ReadOrder(polls, AT, [BlockRun(0, 0, BLOCKS)]))
    ended = [end for _ in range(polls) for end in _poll(source, sink)]
    sink.disconnect(AT)
    while not ended:
        ended += _poll(source, sink)
    ours[:] = POISON
    sink.connect(AT, welcome)  # somebody else has business there
    for _ in range(LAST_POLLS):
        _poll(source, sink)
    return ours != POISON


def _poll(source: Mover, sink: Mover) -> list[object]:
    source.poll()
    return list(sink.poll())


def _region(memory: bytearray) -> KvRegion:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return KvRegion(address, BLOCK, BLOCKS, "cpu")


if __name__ == "__main__":
    assert writes_on(NixlMover.start) == []
