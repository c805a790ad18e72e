"""What a TCP mover requests of another one, and its encoding: requests in a stream.

    first     the source's secret, of SECRET_BYTES
    request   length (4 bytes), msgpack of ([(first block, count), …], None)
              or of ([(first slot, count), …], what a slot is: spans.py)

A request longer than LONGEST_REQUEST is malformed. So a read of very many runs is split into
several requests, which are answered one after another.
"""

from collections.abc import Iterator

import msgspec

from kv_transfer.blocks.runs import BlockRuns, merge_runs
from kv_transfer.movers.spans import SlotLayout

SECRET_BYTES = 16
LENGTH_BYTES = 4
LONGEST_REQUEST = 1 << 20
MOST_RUNS = 1 << 15  # of at most 19 bytes each; this leaves room for the description of slots


class ReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """See the module's picture."""

    runs: tuple[tuple[int, int], ...]
    slots: SlotLayout | None = None

    @property
    def num_pieces(self) -> int:
        """How many pieces of blocks it names; 0: it names whole blocks, or none."""
        parts = () if self.slots is None else self.slots.parts
        return len(parts) * sum(count for _, count in self.runs)


def split_runs(runs: BlockRuns) -> Iterator[BlockRuns]:
    """A read's runs, split into as many as one request may name."""
    for start in range(0, len(runs), MOST_RUNS):
        yield runs[start : start + MOST_RUNS]


def framed(runs: BlockRuns, slots: SlotLayout | None) -> bytes:
    """The request for one part of a read."""
    wanted = tuple(merge_runs(runs.theirs, runs.counts))
    frame = msgspec.msgpack.encode(ReadRequest(wanted, slots))
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


def requests(received: bytearray) -> Iterator[ReadRequest]:
    """Take every complete request off the front; raises ConnectionError or DecodeError."""
    while len(received) >= LENGTH_BYTES:
        length = int.from_bytes(received[:LENGTH_BYTES], "big")
        if length > LONGEST_REQUEST:
            raise ConnectionError(f"a request of {length} bytes")
        end = LENGTH_BYTES + length
        if len(received) < end:
            return
        request = msgspec.msgpack.decode(received[LENGTH_BYTES:end], type=ReadRequest)
        del received[:end]
        yield request
