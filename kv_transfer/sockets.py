"""The sockets of a node's side channel, and what wakes a thread that waits at them."""

import contextlib
import socket

import zmq

from kv_transfer.ledger.sources import Address

LARGEST_MESSAGE = 16 << 20


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]], host: str, port: int
) -> tuple[zmq.Socket[bytes], int]:
    """The side channel's socket, and the port it got; 0 lets the system pick."""
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.IPV6, 1)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.MAXMSGSIZE, LARGEST_MESSAGE)
    name = f"[{host}]" if ":" in host else host
    router.bind(f"tcp://{name}:{port or '*'}")
    endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return router, int(endpoint.rstrip(b"\0").rpartition(b":")[2])


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]], name: bytes, address: Address
) -> zmq.Socket[bytes]:
    """A way to the source at this address, which knows us by `name`; raises ZMQError."""
    host, port = address
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.IDENTITY, name)
    dealer.setsockopt(zmq.IPV6, 1)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.MAXMSGSIZE, LARGEST_MESSAGE)
    try:
        dealer.connect(f"tcp://{f'[{host}]' if ':' in host else host}:{port}")
    except zmq.ZMQError:
        dealer.close()
        raise
    return dealer


class Wakeup:
    """What a thread waits at while another may ring; neither call ever waits."""

    def __init__(self) -> None:
        self._ringing, self._waiting = socket.socketpair()
        self._ringing.setblocking(False)
        self._waiting.setblocking(False)

    def fileno(self) -> int:
        """Readable once it has rung."""
        return self._waiting.fileno()

    def ring(self) -> None:
        """One more time than nobody has heard makes no difference."""
        with contextlib.suppress(BlockingIOError):
            self._ringing.send(b"r")

    def clear(self) -> None:
        """It was heard."""
        with contextlib.suppress(BlockingIOError):
            self._waiting.recv(64)

    def close(self) -> None:
        """Both ends; idempotent."""
        self._ringing.close()
        self._waiting.close()
