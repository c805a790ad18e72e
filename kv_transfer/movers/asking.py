"""What a TCP mover asks another one for, and how that is written: requests in a stream.

    first     the source's secret, of SECRET_BYTES
    request   length (4 bytes), msgpack of ([(first block, count), …], None)
              or of ([(first slot, count), …], what a slot is: spans.py)

One that is longer than LONGEST_REQUEST is none. So a read of very many runs is asked for by
several, which are answered one after another: as by one for each of them.
"""

from collections.abc import Iterator

import msgspec

from kv_transfer.blocks.runs import Runs, merged
from kv_transfer.movers.spans import Slots

SECRET_BYTES = 16
LENGTH_BYTES = 4
LONGEST_REQUEST = 1 << 20
MOST_RUNS = 1 << 15  # of 19 bytes at most; what a slot is has its room beside them


class Request(msgspec.Struct, frozen=True, array_like=True):
    """See the module's picture."""

    runs: tuple[tuple[int, int], ...]
    slots: Slots | None = None


def parts(runs: Runs) -> Iterator[Runs]:
    """A read's runs, as many at a time as one request may name."""
    for start in range(0, len(runs), MOST_RUNS):
        yield runs[start : start + MOST_RUNS]


def framed(runs: Runs, slots: Slots | None) -> bytes:
    """Ask for one part."""
    wanted = tuple(merged(runs.theirs, runs.counts))
    frame = msgspec.msgpack.encode(Request(wanted, slots))
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


def requests(received: bytearray) -> Iterator[Request]:
    """Take every complete request off the front; raises ConnectionError, DecodeError."""
    while len(received) >= LENGTH_BYTES:
        length = int.from_bytes(received[:LENGTH_BYTES], "big")
        if length > LONGEST_REQUEST:
            raise ConnectionError(f"a request of {length} bytes")
        end = LENGTH_BYTES + length
        if len(received) < end:
            return
        yield msgspec.msgpack.decode(received[LENGTH_BYTES:end], type=Request)
        del received[:end]
