"""The TCP mover's source side: serves our memory to peers that know the secret in our card.

The secret comes first on a connection, and until it is right nothing else is read or kept: a
stranger costs a file descriptor and 16 bytes, and the number of strangers is limited. So is
that of known peers from one address: beyond it, a new connection is closed.
"""

import ctypes
import logging
import secrets
import select
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import msgspec

from kv_transfer.accepting import AddressCounts, OutOfResources, accept
from kv_transfer.movers.mover import Interest
from kv_transfer.movers.spans import SlotLayout, SlotRuns, stretches
from kv_transfer.movers.streams import send_views
from kv_transfer.movers.tcp_requests import (
    LONGEST_REQUEST,
    SECRET_BYTES,
    ReadRequest,
    requests,
)
from kv_transfer.regions import Region

MOST_STRANGERS = 1024  # beyond that, a new one replaces the oldest
MOST_PIECES_ASKED = 1 << 20  # by one request: 96 layers of 96 heads, 56 slots of each
MOST_ANSWERS = 1 << 16  # a guest that has more to read is not heard
BOTH = select.POLLIN | select.POLLOUT
CROWDED = "%s has %s connections to the KV memory here: more are closed"
log = logging.getLogger(__name__)
SENSELESS = (OSError, IndexError, OverflowError, RecursionError, msgspec.DecodeError)


@dataclass(slots=True)
class _SinkConnection:
    """A sink's connection; a stranger's until it is `known`, with the address that it has then.

    `unanswered`: `received` may have requests that wait until the guest has read more.
    """

    connection: socket.socket
    known: bool = False
    address: str = ""
    received: bytearray = field(default_factory=bytearray)
    answers: deque[memoryview] = field(default_factory=deque)
    unanswered: bool = False

    @property
    def is_behind(self) -> bool:
        """Whether it has so much to read that nothing more is heard of it until it does."""
        return len(self.answers) > MOST_ANSWERS

    @property
    def interest(self) -> Interest:
        """For writing only while there is something to write, or to answer."""
        if self.is_behind or self.unanswered:
            return select.POLLOUT
        return BOTH if self.answers else select.POLLIN


@dataclass(slots=True)
class RegionServer:
    """Answers requests for bytes in our regions, one after another on each connection."""

    listener: socket.socket
    secret: bytes
    regions: Sequence[Region]
    _memory: Sequence[memoryview] = field(init=False)
    _guests: dict[int, _SinkConnection] = field(default_factory=dict)
    # those of `_guests` that are not known
    _strangers: dict[int, _SinkConnection] = field(default_factory=dict)
    _known_from: AddressCounts = field(default_factory=AddressCounts)
    _crowded: set[str] = field(default_factory=set)  # addresses that were logged as such
    _interests: dict[int, Interest] = field(default_factory=dict)  # of guests
    _waiting: "select.poll" = field(default_factory=lambda: select.poll())
    _full: bool = False

    def __post_init__(self) -> None:
        """View all memory as bytes, so that a run is a slice."""
        self._memory = [_whole(region) for region in self.regions]

    @classmethod
    def start(cls, host: str, regions: Sequence[Region]) -> Self:
        """Listen on a port that the system picks, with a new secret."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        listener.setblocking(False)
        return cls(listener, secrets.token_bytes(SECRET_BYTES), regions)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.listener.getsockname()[1])

    @property
    def interests(self) -> Mapping[int, Interest]:
        """All sockets."""
        if self._full:  # each poll tries to accept
            return self._interests
        return {self.listener.fileno(): select.POLLIN, **self._interests}

    def poll(self) -> None:
        """Accept and answer as far as the sockets allow."""
        self._accept()
        for number, _ in self._waiting.poll(0):
            self._serve(self._guests[number])

    def views(self, runs: SlotRuns, slots: SlotLayout | None) -> Iterator[memoryview]:
        """The memory of these runs, region by region; IndexError if one is out of range."""
        if slots is not None:
            for number, start, size in stretches(slots, runs, self.regions):
                yield self._memory[number][start : start + size]
            return
        if not runs:
            return
        if (fewest := min(count for _, count in runs)) < 1:
            raise IndexError(f"a run of {fewest} blocks")
        low, high = min(runs)[0], max(map(sum, runs)) - 1
        for region, memory in zip(self.regions, self._memory, strict=True):
            size = region.block_bytes
            region.at(low)
            region.at(high)
            yield from [memory[one * size : (one + many) * size] for one, many in runs]

    def close(self) -> None:
        """Close all connections and the port."""
        for guest in list(self._guests.values()):
            self._close(guest)
        self.listener.close()

    def _accept(self) -> None:
        while connection := self._next():
            number, guest = connection.fileno(), _SinkConnection(connection)
            self._guests[number] = self._strangers[number] = guest
            self._watch(guest)
            if len(self._strangers) > MOST_STRANGERS:
                self._close(next(iter(self._strangers.values())))

    def _next(self) -> socket.socket | None:
        try:
            connection, self._full = accept(self.listener), False
        except OutOfResources:
            connection, self._full = None, True
        return connection

    def _serve(self, guest: _SinkConnection) -> None:
        try:
            alive = self._hear(guest)
            send_views(guest.connection, guest.answers)
        except SENSELESS:
            alive = False
        if alive:
            self._watch(guest)
        else:
            self._close(guest)

    def _watch(self, guest: _SinkConnection) -> None:
        number, interest = guest.connection.fileno(), guest.interest
        if self._interests.get(number) != interest:
            self._interests[number] = interest
            self._waiting.register(number, interest)

    def _hear(self, guest: _SinkConnection) -> bool:
        """Take in what the guest sends; False if it has closed the connection."""
        if not guest.known:
            missing = SECRET_BYTES - len(guest.received)
            alive = _receive(guest.connection, guest.received, missing)
            if len(guest.received) < SECRET_BYTES:
                return alive
            self._let_in(guest)
        if guest.is_behind:
            return True
        alive = guest.unanswered or _receive(guest.connection, guest.received, LONGEST_REQUEST)
        guest.unanswered = False
        for request in requests(guest.received):
            guest.answers.extend(self._answer(request))
            if guest.is_behind:
                guest.unanswered = True
                break
        return alive

    def _answer(self, request: ReadRequest) -> Iterator[memoryview]:
        """Raises IndexError for what is not here, or is too much to list in this thread."""
        if request.num_pieces > MOST_PIECES_ASKED:
            raise IndexError(f"a request of {request.num_pieces} pieces")
        return self.views(request.runs, request.slots)

    def _let_in(self, guest: _SinkConnection) -> None:
        """Compare the secret; raises ConnectionError if it is wrong, or there is no room."""
        if not secrets.compare_digest(bytes(guest.received), self.secret):
            raise ConnectionError("wrong secret")
        address = str(guest.connection.getpeername()[0])
        if not self._known_from.add(address):
            self._report_crowded(address)
            raise ConnectionError("too many connections")
        guest.known, guest.address = True, address
        guest.received.clear()
        del self._strangers[guest.connection.fileno()]

    def _report_crowded(self, address: str) -> None:
        """Once, until the address has no more connections: a peer may try without end."""
        if address not in self._crowded:
            self._crowded.add(address)
            log.warning(CROWDED, address, self._known_from.most)

    def _close(self, guest: _SinkConnection) -> None:
        number = guest.connection.fileno()
        self._waiting.unregister(number)
        guest.connection.close()
        del self._guests[number], self._interests[number]
        self._strangers.pop(number, None)
        if guest.known and self._known_from.remove(guest.address):
            self._crowded.discard(guest.address)


def _whole(region: Region) -> memoryview:
    size = region.num_blocks * region.block_bytes
    return memoryview((ctypes.c_char * size).from_address(region.address)).cast("B")


def _receive(connection: socket.socket, received: bytearray, most: int) -> bool:
    """Read what is there; False if the other side has closed."""
    try:
        data = connection.recv(most)
    except BlockingIOError:
        return True
    received += data
    return bool(data)
