"""The side channel's connections: sinks come to our `Reception`, a `Way` leads to a source.

Plain TCP in the thread that needs the messages. A library with a thread of its own for sockets
would wake it, and it us, for every message; both sides' four wakes are most of a round trip.
Who is not introduced as it should be is told so, and heard no more.
What a connection was given and did not send goes to the next one, as a whole; what it did send
may be lost with it. Whoever needs an answer asks again (wire.py).
"""

import errno
import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kv_transfer.accepting import NoRoom, accept, prepare
from kv_transfer.ledger.guests import Peer
from kv_transfer.ledger.sources import Address
from kv_transfer.lookup import Found, Lookup
from kv_transfer.side_channel.frames import (
    LARGEST_FRAME,
    BadFrames,
    Incoming,
    Outgoing,
    framed,
)
from kv_transfer.side_channel.introduction import (
    LONGEST_SAID,
    Introductions,
    NotIntroduced,
    PlainNames,
)
from kv_transfer.side_channel.port import open_port, turn_out
from kv_transfer.side_channel.waiting import Ready, Waiting
from kv_transfer.wire import TurnedAway, encode

RETRY_S = 0.1  # between two attempts to connect
INTRODUCTION_S = 10.0  # how long a connection may stay without a name
DISMISS_S = 1.0  # between two looks for those
MOST_NAMELESS = 1024  # who comes then takes the place of who has been so for longest
BOTH = select.POLLIN | select.POLLOUT
ITS_END = 0  # of events only that both sides are done, which poll always tells
UNDER_WAY = {0, errno.EINPROGRESS, errno.EWOULDBLOCK}


@dataclass(slots=True)
class _Guest:
    """A connection that came to us; its first message is its introduction, which is short.

    `over`: it was turned away; it may read that, and is closed when it leaves.
    """

    connection: socket.socket
    since: float
    name: Peer | None = None
    over: bool = False
    incoming: Incoming = field(default_factory=lambda: Incoming(LONGEST_SAID))
    outgoing: Outgoing = field(default_factory=Outgoing)


@dataclass(slots=True)
class Reception:
    """Who comes to us, by the names they give; a newer connection takes over a name."""

    listener: socket.socket
    waiting: Waiting
    introductions: Introductions = field(default_factory=PlainNames)
    host: str = ""  # by which others know us
    _guests: dict[int, _Guest] = field(default_factory=dict)
    _by_name: dict[Peer, _Guest] = field(default_factory=dict)
    _nameless: dict[int, _Guest] = field(default_factory=dict)  # those of `_guests`
    _dismissed_at: float = 0.0
    _full: bool = False

    @classmethod
    def bind(
        cls,
        host: str,
        port: int,
        waiting: Waiting,
        introductions: Introductions | None = None,
        advertise_host: str | None = None,
        held: socket.socket | None = None,
    ) -> "Reception":
        """Open the port, unless it is `held`; 0 lets the system pick. Raises OSError."""
        listener = held or open_port(host, port)
        turn_out(listener)
        waiting.watch(listener.fileno())
        return cls(listener, waiting, introductions or PlainNames(), advertise_host or host)

    @property
    def port(self) -> int:
        """Where to come to."""
        return int(self.listener.getsockname()[1])

    def hear(self, ready: Ready, now: float) -> Iterator[tuple[Peer, bytes | BadFrames]]:
        """What those who are ready say, in order; what has no sense ends its connection."""
        for number in ready.keys() & self._guests.keys():
            if guest := self._guests.get(number):  # not closed by one before it
                yield from self._hear(guest)
        if self._full or self.listener.fileno() in ready:
            self._accept(now)
        if now - self._dismissed_at >= DISMISS_S:
            self._dismiss(now)

    def say(self, peer: Peer, message: bytes) -> None:
        """Nobody of that name is here: then nobody misses it."""
        if guest := self._by_name.get(peer):
            try:
                guest.outgoing.add(framed(message))
                self._send(guest)
            except OSError:
                self._close(guest)

    def close(self) -> None:
        """All connections, and the port."""
        for guest in list(self._guests.values()):
            self._close(guest)
        self.listener.close()

    def _accept(self, now: float) -> None:
        while connection := self._next():
            number, guest = connection.fileno(), _Guest(connection, now)
            self._guests[number] = self._nameless[number] = guest
            self.waiting.watch(number)
            if len(self._nameless) > MOST_NAMELESS:
                self._close(next(iter(self._nameless.values())))

    def _next(self) -> socket.socket | None:
        """The first in line; while there is no room for it, nothing wakes us for its sake."""
        connection, full = None, False
        try:
            connection = accept(self.listener)
        except NoRoom:
            full = True
        if full is not self._full:
            self._full, number = full, self.listener.fileno()
            (self.waiting.forget if full else self.waiting.watch)(number)
        return connection

    def _dismiss(self, now: float) -> None:
        """Those who have not said who they are, or were told to go, and are still there."""
        self._dismissed_at = now
        for guest in list(self._nameless.values()):
            if now - guest.since > INTRODUCTION_S:
                self._close(guest)

    def _hear(self, guest: _Guest) -> Iterator[tuple[Peer, bytes | BadFrames]]:
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

    def _introduce(self, guest: _Guest, said: bytes) -> None:
        guest.name = name = self.introductions.read(said, (self.host, self.port))
        guest.incoming.largest = LARGEST_FRAME
        del self._nameless[guest.connection.fileno()]
        if before := self._by_name.get(name):
            self._close(before)
        self._by_name[name] = guest

    def _turn_away(self, guest: _Guest, error: NotIntroduced) -> None:
        """To close it now would take the word back, as long as it sends what nobody reads."""
        guest.over = True
        try:
            guest.connection.sendall(framed(encode(TurnedAway(str(error)))))
            guest.connection.shutdown(socket.SHUT_WR)
            self.waiting.watch(guest.connection.fileno(), ITS_END)
        except OSError:
            self._close(guest)

    def _send(self, guest: _Guest) -> None:
        before = bool(guest.outgoing)
        guest.outgoing.send(guest.connection)
        if before or guest.outgoing:
            wanted = BOTH if guest.outgoing else select.POLLIN
            self.waiting.watch(guest.connection.fileno(), wanted)

    def _close(self, guest: _Guest) -> None:
        if self._guests.pop(guest.connection.fileno(), None) is None:
            return
        self.waiting.forget(guest.connection.fileno())
        self._nameless.pop(guest.connection.fileno(), None)
        guest.connection.close()
        if guest.name is not None and self._by_name.get(guest.name) is guest:
            del self._by_name[guest.name]


@dataclass(slots=True)
class Way:
    """To one source, which knows us by `name`; connected when there is something to say."""

    address: Address
    name: Peer
    waiting: Waiting
    _connection: socket.socket | None = None
    _greeting: Outgoing = field(default_factory=Outgoing)
    _incoming: Incoming = field(default_factory=Incoming)
    _outgoing: Outgoing = field(default_factory=Outgoing)
    _retry_at: float = 0.0
    look_up: Callable[[str, int], Lookup] = Lookup.of
    introductions: Introductions = field(default_factory=PlainNames)
    _lookup: Lookup | None = None

    def say(self, message: bytes, now: float) -> None:
        """Now, or once there is a connection; raises BadFrames where too much waits for one."""
        self._outgoing.add(framed(message))
        self._drive(now)

    def hear(self, ready: Ready, now: float) -> Iterator[bytes]:
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
            self.waiting.forget(self._connection.fileno())
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
        self._connection, self._incoming = socket.socket(family, socket.SOCK_STREAM), Incoming()
        self._greeting = Outgoing()
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


def _whence(connection: socket.socket) -> bytes:
    try:
        return str(connection.getpeername()[0]).encode()
    except OSError:
        return b"somebody who has left"
