"""The side channel's connection from a sink to one source.

Messages that a broken connection had not sent yet go over the next one, each as a whole. What
was sent may be lost with the connection; the sink then asks again (wire.py).
"""

import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kv_transfer.dialing import Dialer
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.lookup import Lookup
from kv_transfer.side_channel.frames import ReceiveBuffer, SendBuffer, framed
from kv_transfer.side_channel.introduction import Introductions, PlainNames
from kv_transfer.side_channel.poller import Poller, Ready

RETRY_S = 0.1  # between two attempts to connect
BOTH = select.POLLIN | select.POLLOUT


@dataclass(slots=True)
class SourceConnection:
    """To one source, which knows us by `name`; connects when there is something to send."""

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
    _dialer: Dialer | None = None  # while there is no connection but one is needed
    _watched: int | None = None

    def send(self, message: bytes, now: float) -> None:
        """Send now or once connected; raises BadFrames if too much is already waiting."""
        self._outgoing.add(framed(message))
        self._drive(now)

    def receive(self, ready: Ready, now: float) -> Iterator[bytes]:
        """Messages of the source, if it is ready. Call it in every turn."""
        if self._connection is None:
            self._drive(now)
        elif self._connection.fileno() in ready:
            try:
                self._send(self._connection)
                yield from self._incoming.receive(self._connection)
            except OSError:
                self._break(now)

    def close(self) -> None:
        """Close the connection; messages that were not sent yet stay queued."""
        self._watch(None)
        if self._dialer is not None:
            self._dialer.close()
            self._dialer = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _drive(self, now: float) -> None:
        """Connect, if there is something to send and it is time; send what can be sent."""
        try:
            if self._connection is None and self._outgoing and now >= self._retry_at:
                self._connect(now)
            if self._connection is not None:
                self._send(self._connection)
        except OSError:
            self._break(now)

    def _connect(self, now: float) -> None:
        """Begin or continue to connect; raises OSError if no address of the source answers."""
        self._dialer = self._dialer or Dialer(self.look_up(*self.address))
        connection = self._dialer.connect(now)
        if connection is None:
            self._watch(*self._dialer.interest)
            return
        self._watch(connection.fileno(), BOTH)
        self._connection, self._dialer = connection, None
        self._incoming, self._greeting = ReceiveBuffer(), SendBuffer()
        self._greeting.add(framed(self.introductions.said(self.name, self.address)))

    def _watch(self, descriptor: int | None, events: int = BOTH) -> None:
        """Watch this descriptor in place of the previous one."""
        if self._watched not in (None, descriptor):
            self.waiting.unwatch(self._watched)
        if descriptor is not None:
            self.waiting.watch(descriptor, events)
        self._watched = descriptor

    def _send(self, connection: socket.socket) -> None:
        before = bool(self._greeting or self._outgoing)
        self._greeting.send(connection)
        if not self._greeting:
            self._outgoing.send(connection)
        if before:
            left = bool(self._greeting or self._outgoing)
            self._watch(connection.fileno(), BOTH if left else select.POLLIN)

    def _break(self, now: float) -> None:
        self.close()
        self._outgoing.rewind()
        self._retry_at = now + RETRY_S
