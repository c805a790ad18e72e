"""Many ranges of memory through one socket: gathered when sent, scattered when received.

Nothing here blocks, and no call moves more than BYTES_AT_ONCE: the thread also keeps leases
alive.
"""

import socket
from collections import deque
from itertools import islice

CHUNK_BYTES = 4 << 20
BYTES_AT_ONCE = 32 << 20
FEW_VIEWS, MOST_VIEWS = 32, 1024  # in one call; the kernel takes no more than that


def send_bytes(connection: socket.socket, data: bytearray) -> None:
    """Send as much as the socket takes, and remove it from `data`."""
    while data:
        try:
            del data[: connection.send(data)]
        except BlockingIOError:
            return


def send_views(connection: socket.socket, views: deque[memoryview]) -> None:
    """Send as much as the socket takes, in order; what was sent leaves the queue."""
    left, most = BYTES_AT_ONCE, FEW_VIEWS
    while views and left > 0:
        try:
            sent = connection.sendmsg(_first(views, most))
        except BlockingIOError:
            return
        left -= sent
        most = _next(_advance(views, sent))


def receive_views(connection: socket.socket, views: deque[memoryview]) -> bool:
    """Receive into the views in order; True when all are full.

    Raises ConnectionResetError at the stream's end.
    """
    left, most = BYTES_AT_ONCE, FEW_VIEWS
    while views and left > 0:
        try:
            count = connection.recvmsg_into(_first(views, most))[0]
        except BlockingIOError:
            return False
        if count == 0:
            raise ConnectionResetError("the source closed the connection")
        left -= count
        most = _next(_advance(views, count))
    return not views


def _first(views: deque[memoryview], most: int) -> list[memoryview]:
    """Views that make up a chunk, the last one shortened if necessary; at most `most`."""
    chosen, left = list[memoryview](), CHUNK_BYTES
    for view in islice(views, most):
        chosen.append(view if len(view) <= left else view[:left])
        left -= len(chosen[-1])
        if not left:
            break
    return chosen


def _next(done: int) -> int:
    """How many views to offer next: those that are offered in vain also cost time."""
    return min(max(FEW_VIEWS, 2 * done), MOST_VIEWS)


def _advance(views: deque[memoryview], count: int) -> int:
    """Drop the first `count` bytes; returns how many views were completed."""
    done = 0
    while count:
        view = views.popleft()
        if count < len(view):
            views.appendleft(view[count:])
            return done
        count -= len(view)
        done += 1
    return done
