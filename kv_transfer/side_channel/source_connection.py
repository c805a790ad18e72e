"""The side channel's connection from a sink to one source.

What the sink gave to a connection that broke before sending it goes over the next one, message
by message as a whole; what was sent may be lost with it, and the sink asks again (wire.py).
"""

import errno
import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kv_transfer.accepting import prepare
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.lookup import Found, Lookup
from kv_transfer.side_channel.frames import ReceiveBuffer, SendBuffer, framed
from kv_transfer.side_channel.introduction import Introductions, PlainNames
from kv_transfer.side_channel.poller import Poller, Ready

RETRY_S = 0.1  # between two attempts to connect
BOTH = select.POLLIN | select.POLLOUT
UNDER_WAY = {0, errno.EINPROGRESS, errno.EWOULDBLOCK}


@dataclass(slots=True)
class SourceConnection:
    """To one source, which knows us by `name`; connected when there is something to say."""

    address: Address
    name: Peer
    waiting: Poller
    _connection: socket.socket | None = None
    _greeting: SendBuffer = field(default_factory=SendBuffer)
    _incoming: ReceiveBuffer = field(default_factory=ReceiveBuffer)
    _outgoing: SendBuffer = field(default_factory=SendBuffer)
    _retry_at: float = 0.0
    look_up: Callable[[str, int], Lookup] = Lookup.of
    introductions: Introductions = field(default_factory=PlainNames)
    _lookup: Lookup | None = None

    def send(self, message: bytes, now: float) -> None:
        """Now, or once there is a connection; raises BadFrames where too much waits for one."""
        self._outgoing.add(framed(message))
        self._drive(now)

    def receive(self, ready: Ready, now: float) -> Iterator[bytes]:
        """What the source says, if it is ready. To be called in every turn."""
        if self._connection is None:
            self._drive(now)
        elif self._connection.fileno() in ready:
            try:
                self._send(self._connection)
                yield from self._incoming.receive(self._connection)
            except OSError:
                self._break(now)

    def close(self) -> None:
        """What was not said yet is not said any more."""
        if self._lookup is not None:
            self._lookup.close()
            self._lookup = None
        if self._connection is not None:
            self.waiting.unwatch(self._connection.fileno())
            self._connection.close()
            self._connection = None

    def _drive(self, now: float) -> None:
        """Connect, if there is something to say and it is time; send what can be sent."""
        try:
            if self._connection is None and self._outgoing and now >= self._retry_at:
                self._connect()
            if self._connection is not None:
                self._send(self._connection)
        except OSError:
            self._break(now)

    def _connect(self) -> None:
        """Begin to, unless it is not known yet where a name leads; raises OSError."""
        if not (found := self._find()):
            return
        family, _, _, _, place = found[0]
        self._connection, self._incoming = (
            socket.socket(family, socket.SOCK_STREAM),
            ReceiveBuffer(),
        )
        self._greeting = SendBuffer()
        self._greeting.add(framed(self.introductions.said(self.name, self.address)))
        prepare(self._connection)
        self.waiting.watch(self._connection.fileno(), BOTH)
        trouble = self._connection.connect_ex(place)
        if trouble not in UNDER_WAY:
            raise OSError(trouble, "no way")

    def _find(self) -> Found:
        """Empty: not known yet."""
        self._lookup = self._lookup or self.look_up(*self.address)
        try:
            found = self._lookup.found()
        except OSError:
            self._lookup = None
            raise
        if found:
            self._lookup = None
        return found

    def _send(self, connection: socket.socket) -> None:
        before = bool(self._greeting or self._outgoing)
        self._greeting.send(connection)
        if not self._greeting:
            self._outgoing.send(connection)
        if before:
            left = bool(self._greeting or self._outgoing)
            self.waiting.watch(connection.fileno(), BOTH if left else select.POLLIN)

    def _break(self, now: float) -> None:
        self.close()
        self._outgoing.rewind()
        self._retry_at = now + RETRY_S
