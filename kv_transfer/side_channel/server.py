"""The source's end of the side channel: its port, and the connections that sinks open to it.

Plain TCP in the transfer thread. A library with its own socket thread would wake that thread,
and then ours, for every message; these four wake-ups on both sides are most of a round trip. A
sink whose introduction the source does not accept is told so, and its messages are ignored.
"""

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

from kv_transfer.accepting import AddressCounts, OutOfResources, accept
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.side_channel.frames import (
    LARGEST_FRAME,
    BadFrames,
    ReceiveBuffer,
    SendBuffer,
    framed,
)
from kv_transfer.side_channel.introduction import (
    CROWDED,
    LONGEST_SAID,
    Introductions,
    NotIntroduced,
    PlainNames,
)
from kv_transfer.side_channel.poller import Poller, Ready
from kv_transfer.side_channel.port import close_backlog, open_port
from kv_transfer.wire import TurnedAway, encode

INTRODUCTION_S = 10.0  # how long a connection may stay without a name
DISMISS_S = 1.0  # between two checks for those
MOST_NAMELESS = 1024  # beyond that, a new one replaces the oldest
BOTH = select.POLLIN | select.POLLOUT
ITS_END = 0  # of events only the hang-up, which poll always reports


@dataclass(slots=True)
class _SinkConnection:
    """A connection from a sink; its first message is its introduction, which is short.

    `address`: where it came from, once it has a name. `over`: it was turned away; it may read
    that, and is closed when the peer closes it.
    """

    connection: socket.socket
    since: float
    name: Peer | None = None
    address: str = ""
    over: bool = False
    incoming: ReceiveBuffer = field(default_factory=lambda: ReceiveBuffer(LONGEST_SAID))
    outgoing: SendBuffer = field(default_factory=SendBuffer)


@dataclass(slots=True)
class SideChannelServer:
    """Connections from sinks, by the names they give; a newer one takes over a name.

    Those with names are limited for each address that they come from.
    """

    listener: socket.socket
    waiting: Poller
    introductions: Introductions = field(default_factory=PlainNames)
    host: str = ""  # the host by which peers reach us
    _guests: dict[int, _SinkConnection] = field(default_factory=dict)
    _by_name: dict[Peer, _SinkConnection] = field(default_factory=dict)
    # those of `_guests` without a name
    _nameless: dict[int, _SinkConnection] = field(default_factory=dict)
    _named_from: AddressCounts = field(default_factory=AddressCounts)
    _dismissed_at: float = 0.0
    _full: bool = False

    @classmethod
    def bind(
        cls,
        host: str,
        port: int,
        waiting: Poller,
        introductions: Introductions | None = None,
        advertise_host: str | None = None,
        held: socket.socket | None = None,
    ) -> "SideChannelServer":
        """Open the port, unless it is `held`; 0 lets the system pick. Raises OSError."""
        listener = held or open_port(host, port)
        close_backlog(listener)
        waiting.watch(listener.fileno())
        return cls(listener, waiting, introductions or PlainNames(), advertise_host or host)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.listener.getsockname()[1])

    def receive(self, ready: Ready, now: float) -> Iterator[tuple[Peer, bytes | BadFrames]]:
        """Messages on ready connections, in order; a malformed one ends its connection.

        Connections take turns in the order in which they were made, so the latest has the name.
        """
        for number in [one for one in self._guests if one in ready]:
            if guest := self._guests.get(number):  # not closed by one before it
                yield from self._hear(guest)
        if self._full or self.listener.fileno() in ready:
            self._accept(now)
        if now - self._dismissed_at >= DISMISS_S:
            self._dismiss(now)

    def send(self, peer: Peer, message: bytes) -> None:
        """Send to a sink; dropped if no sink of that name is connected."""
        if guest := self._by_name.get(peer):
            try:
                guest.outgoing.add(framed(message))
                self._send(guest)
            except OSError:
                self._close(guest)

    def close(self) -> None:
        """Close all connections and the port."""
        for guest in list(self._guests.values()):
            self._close(guest)
        self.listener.close()

    def _accept(self, now: float) -> None:
        while connection := self._next():
            number, guest = connection.fileno(), _SinkConnection(connection, now)
            self._guests[number] = self._nameless[number] = guest
            self.waiting.watch(number)
            if len(self._nameless) > MOST_NAMELESS:
                self._close(next(iter(self._nameless.values())))

    def _next(self) -> socket.socket | None:
        """Accept the next connection; without resources for it, the listener is not watched."""
        connection, full = None, False
        try:
            connection = accept(self.listener)
        except OutOfResources:
            full = True
        if full is not self._full:
            self._full, number = full, self.listener.fileno()
            (self.waiting.unwatch if full else self.waiting.watch)(number)
        return connection

    def _dismiss(self, now: float) -> None:
        """Close connections that have no name, or were turned away, for too long."""
        self._dismissed_at = now
        for guest in list(self._nameless.values()):
            if now - guest.since > INTRODUCTION_S:
                self._close(guest)

    def _hear(self, guest: _SinkConnection) -> Iterator[tuple[Peer, bytes | BadFrames]]:
        if guest.over:
            self._close(guest)
            return
        try:
            self._send(guest)
            for message in guest.incoming.receive(guest.connection):
                if guest.name is None:
                    self._introduce(guest, message)
                else:
                    yield guest.name, message
        except NotIntroduced as error:
            yield _whence(guest.connection), error
            self._turn_away(guest, error)
        except BadFrames as error:
            yield guest.name or b"", error
            self._close(guest)
        except OSError:
            self._close(guest)

    def _introduce(self, guest: _SinkConnection, said: bytes) -> None:
        name = self.introductions.read(said, (self.host, self.port))
        address = str(guest.connection.getpeername()[0])
        if before := self._by_name.get(name):
            self._close(before)
        if not self._named_from.add(address):
            most = self._named_from.most
            raise NotIntroduced(f"{address} has {most} connections already", CROWDED)
        guest.name, guest.address = name, address
        guest.incoming.largest = LARGEST_FRAME
        del self._nameless[guest.connection.fileno()]
        self._by_name[name] = guest

    def _turn_away(self, guest: _SinkConnection, error: NotIntroduced) -> None:
        """Tell the peer why, but do not close yet: unread bytes would reset the connection and
        discard that message.
        """
        guest.over = True
        try:
            guest.connection.sendall(framed(encode(TurnedAway(str(error)))))
            guest.connection.shutdown(socket.SHUT_WR)
            self.waiting.watch(guest.connection.fileno(), ITS_END)
        except OSError:
            self._close(guest)

    def _send(self, guest: _SinkConnection) -> None:
        before = bool(guest.outgoing)
        guest.outgoing.send(guest.connection)
        if before or guest.outgoing:
            wanted = BOTH if guest.outgoing else select.POLLIN
            self.waiting.watch(guest.connection.fileno(), wanted)

    def _close(self, guest: _SinkConnection) -> None:
        if self._guests.pop(guest.connection.fileno(), None) is None:
            return
        self.waiting.unwatch(guest.connection.fileno())
        self._nameless.pop(guest.connection.fileno(), None)
        guest.connection.close()
        if guest.name is None:
            return
        self._named_from.remove(guest.address)
        if self._by_name.get(guest.name) is guest:
            del self._by_name[guest.name]


def _whence(connection: socket.socket) -> bytes:
    try:
        return str(connection.getpeername()[0]).encode()
    except OSError:
        return b"somebody who has left"
