"""Whatever lies in pieces on either side comes through a socket whole and in order."""

import itertools
import socket
from collections import deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.movers.streams import CHUNK_BYTES, MOST_VIEWS, receive_views, send_views

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def through(theirs: Sequence[int], ours: Sequence[int]) -> bytes:
    """As many bytes as the shorter side has, from views of these sizes into views of those."""
    count = min(sum(theirs), sum(ours))
    data, memory = bytearray(i % 251 for i in range(count)), bytearray(count)
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        there.setblocking(False)
        sent, received = views(data, theirs), views(memory, ours)
        while not receive_views(there, received):
            send_views(here, sent)
    assert memory == data
    assert not sent
    return bytes(memory)


def views(data: bytearray, lengths: Sequence[int]) -> deque[memoryview]:
    edges = [min(edge, len(data)) for edge in itertools.accumulate(lengths, initial=0)]
    return deque(memoryview(data)[a:b] for a, b in itertools.pairwise(edges) if b > a)


@given(sizes, sizes)
def test_pieces_of_any_size_become_pieces_of_any_other(
    theirs: list[int], ours: list[int]
) -> None:
    assert len(through(theirs, ours)) == min(sum(theirs), sum(ours))


def test_more_pieces_than_a_call_takes_and_more_bytes_than_a_chunk() -> None:
    through([3] * (3 * MOST_VIEWS), [1] * (9 * MOST_VIEWS))
    through([2 * CHUNK_BYTES + 1, 5], [CHUNK_BYTES, CHUNK_BYTES + 6])
