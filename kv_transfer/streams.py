"""Many stretches of memory through one socket: gathered when sent, scattered when received.

Nothing here waits, and no call takes more than BYTES_AT_ONCE: the thread keeps leases alive.
"""

import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

CHUNK_BYTES = 4 << 20
BYTES_AT_ONCE = 32 << 20
MOST_VIEWS = 1024  # what the kernel takes in one call


def send_bytes(connection: socket.socket, data: bytearray) -> None:
    """Send as much as the socket takes, and delete it."""
    while data:
        try:
            del data[: connection.send(data)]
        except BlockingIOError:
            return


def send_views(connection: socket.socket, views: deque[memoryview]) -> None:
    """Send as much as the socket takes, in order; what is sent leaves the queue."""
    left = BYTES_AT_ONCE
    while views and left > 0:
        try:
            sent = connection.sendmsg(_first(views))
        except BlockingIOError:
            return
        left -= sent
        _advance(views, sent)


def fill(connection: socket.socket, views: deque[memoryview]) -> bool:
    """Receive into the views in order; True when all are full.

    Raises ConnectionResetError at the stream's end.
    """
    left = BYTES_AT_ONCE
    while views and left > 0:
        try:
            count = connection.recvmsg_into(_first(views))[0]
        except BlockingIOError:
            return False
        if count == 0:
            raise ConnectionResetError("the source closed the connection")
        left -= count
        _advance(views, count)
    return not views


def joined(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same (first, count) in the same order, those that follow one another as one."""
    found = list[tuple[int, int]]()
    for first, count in runs:
        if found and first == sum(found[-1]):
            first, count = found[-1][0], found.pop()[1] + count
        found.append((first, count))
    return found


def _first(views: deque[memoryview]) -> list[memoryview]:
    """As many as make a chunk, and the beginning of the last of them."""
    chosen, left = list[memoryview](), CHUNK_BYTES
    for view in islice(views, MOST_VIEWS):
        chosen.append(view[:left])
        left -= len(chosen[-1])
        if not left:
            break
    return chosen


def _advance(views: deque[memoryview], count: int) -> None:
    """The first `count` bytes are done with."""
    while count:
        view = views.popleft()
        if count < len(view):
            views.appendleft(view[count:])
            return
        count -= len(view)
