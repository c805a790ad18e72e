"""The TCP mover: plain sockets, from KV memory straight into KV memory.

For machines where NIXL is not to be had. A sink keeps one connection to each source. It
asks with the source's secret, which was in the card, and a list of runs; the source answers
with the bytes of all regions, in the order asked. Requests are answered one after another.
A stream has no blocks: neighbours on one side are one run there, whatever they are here.
Where the sides' blocks are not alike, a request says which parts of a block it wants.

    request   asking.py
    answer    the bytes; a request that makes no sense ends the connection
"""

import ctypes
import secrets
import select
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kv_transfer.blocks.runs import Runs, merged
from kv_transfer.errors import (
    PeerUnreachable,
    TransferCancelled,
    TransferError,
    UnusableMemory,
)
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.ledger.sources import Address
from kv_transfer.lookup import Lookup
from kv_transfer.movers.asking import LONGEST_REQUEST, framed, parts, requests
from kv_transfer.movers.mover import Interest, ReadEnd
from kv_transfer.movers.spans import Ids, Slots, sides, stretches
from kv_transfer.movers.streams import fill, send_bytes, send_views
from kv_transfer.regions import Region
from kv_transfer.wire import Welcome

SECRET_BYTES = 16
BOTH = select.POLLIN | select.POLLOUT
SENSELESS = (OSError, IndexError, OverflowError, RecursionError, msgspec.DecodeError)


class _Card(msgspec.Struct, frozen=True):
    host: str
    port: int
    secret: bytes


@dataclass(slots=True)
class _Guest:
    """A sink's connection, seen from the source."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    answers: deque[memoryview] = field(default_factory=deque)


@dataclass(slots=True)
class _Link:
    """A source's connection, seen from the sink: what to send, and where answers go.

    There is none before it is known where its host is.
    """

    lookup: Lookup
    secret: bytes
    connection: socket.socket | None = None
    requests: bytearray = field(default_factory=bytearray)
    targets: deque[tuple[int, deque[memoryview]]] = field(default_factory=deque)

    @property
    def interest(self) -> tuple[int | None, Interest]:
        """What announces that there is something to do here."""
        if self.connection is None:
            return self.lookup.fileno(), select.POLLIN
        return self.connection.fileno(), BOTH if self.requests else select.POLLIN

    def connected(self) -> socket.socket | None:
        """Begin to connect, once it is known where to; raises OSError."""
        if self.connection is None and (found := self.lookup.found()):
            family, _, _, _, place = found[0]
            self.connection = socket.socket(family, socket.SOCK_STREAM)
            self.connection.setblocking(False)
            self.connection.connect_ex(place)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.connection

    def close(self) -> None:
        """Wherever it has come to."""
        self.lookup.close()
        if self.connection is not None:
            self.connection.close()


@dataclass(slots=True)
class TcpMover:
    """Serves our regions on `listener`, reads others' over links it opens itself."""

    listener: socket.socket
    card: bytes
    secret: bytes
    regions: Sequence[Region]
    look_up: Callable[[str, int], Lookup] = Lookup.of
    _memory: Sequence[memoryview] = field(init=False)
    _links: dict[Address, _Link] = field(default_factory=dict)
    _guests: dict[int, _Guest] = field(default_factory=dict)
    _ended: list[ReadEnd] = field(default_factory=list)

    def __post_init__(self) -> None:
        """All memory as bytes, of which a run is a slice."""
        self._memory = [_whole(region) for region in self.regions]

    @classmethod
    def start(
        cls, bind_host: str, advertise_host: str, regions: Sequence[Region]
    ) -> "TcpMover":
        """Listen on a port that the system picks; raises UnusableMemory for a device's."""
        for region in regions:
            if region.device != "cpu":
                raise UnusableMemory(
                    f"--kv-connector tcp moves KV in main memory, and not on {region.device}: "
                    "nixl does"
                )
        family = socket.AF_INET6 if ":" in bind_host else socket.AF_INET
        listener = socket.create_server((bind_host, 0), family=family)
        listener.setblocking(False)
        secret = secrets.token_bytes(SECRET_BYTES)
        card = _Card(advertise_host, listener.getsockname()[1], secret)
        return cls(listener, msgspec.msgpack.encode(card), secret, regions)

    @property
    def driven(self) -> bool:
        """Sockets announce whoever reads."""
        return False

    @property
    def pending(self) -> bool:
        """Only what ended already; the rest announces itself by `interests`."""
        return bool(self._ended)

    @property
    def interests(self) -> Mapping[int, Interest]:
        """All sockets; writable ones only while there is something to write."""
        found: dict[int, Interest] = {self.listener.fileno(): select.POLLIN}
        for guest in self._guests.values():
            found[guest.connection.fileno()] = BOTH if guest.answers else select.POLLIN
        announced = [link.interest for link in self._links.values()]
        return found | {number: what for number, what in announced if number is not None}

    def meet(self, address: Address, welcome: Welcome) -> None:
        """Begin to connect; that it failed shows at the first read."""
        self.part(address)
        try:
            card = msgspec.msgpack.decode(welcome.cards[0], type=_Card)
            link = _Link(self.look_up(card.host, card.port), card.secret)
            link.connected()
        except (msgspec.DecodeError, IndexError, OSError) as error:
            raise PeerUnreachable(f"{address}: {error!r}") from error
        self._links[address] = link

    def part(self, address: Address) -> None:
        """Close the link; what it still had to bring is cancelled."""
        if link := self._links.pop(address, None):
            self._end_all(link, TransferCancelled())

    def read(self, order: ReadOrder) -> None:
        """Ask for all runs of one order."""
        link = self._links.get(order.address)
        if link is None:
            unknown = PeerUnreachable(f"{order.address} was never met")
            self._ended.append((order.read_id, unknown))
            return
        wanted, into = sides(order.cut)
        views = deque[memoryview]()
        for some in parts(Runs.of(order.runs)):
            link.requests += framed(link.secret, some, wanted)
            views.extend(self._views(merged(some.ours, some.counts), into))
        link.targets.append((order.read_id, views))
        self._drive(order.address, link)

    def poll(self) -> Sequence[ReadEnd]:
        """Accept, answer, ask and receive as far as the sockets let us."""
        self._accept()
        for guest in list(self._guests.values()):
            self._serve(guest)
        for address, link in list(self._links.items()):
            self._drive(address, link)
        ended, self._ended = self._ended, []
        return ended

    def waits_for(self) -> Collection[Address]:
        """Sockets announce what there is to do."""
        return ()

    def close(self) -> None:
        """Close every socket."""
        for address in list(self._links):
            self.part(address)
        for guest in self._guests.values():
            guest.connection.close()
        self._guests.clear()
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError:
                return  # nobody else, or one that is gone already
            self._guests[connection.fileno()] = _Guest(connection)

    def _serve(self, guest: _Guest) -> None:
        number = guest.connection.fileno()
        try:
            alive = _receive(guest.connection, guest.received)
            for request in requests(guest.received):
                if not secrets.compare_digest(request.secret, self.secret):
                    raise ConnectionError("wrong secret")
                guest.answers.extend(self._views(request.runs, request.slots))
            send_views(guest.connection, guest.answers)
        except SENSELESS:
            alive = False
        if not alive:
            guest.connection.close()
            del self._guests[number]

    def _drive(self, address: Address, link: _Link) -> None:
        try:
            if (connection := link.connected()) is None:
                return
            send_bytes(connection, link.requests)
            while link.targets:
                read_id, views = link.targets[0]
                if not fill(connection, views):
                    return
                link.targets.popleft()
                self._ended.append((read_id, None))
            _expect_nothing(connection)
        except OSError as error:
            self._links.pop(address, None)
            self._end_all(link, PeerUnreachable(f"{address}: {error!r}"))

    def _views(self, runs: Ids, slots: Slots | None) -> Iterator[memoryview]:
        """The memory of these runs, region by region; IndexError for what lies outside."""
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

    def _end_all(self, link: _Link, error: TransferError) -> None:
        link.close()
        self._ended += [(read_id, error) for read_id, _ in link.targets]


def _whole(region: Region) -> memoryview:
    size = region.num_blocks * region.block_bytes
    return memoryview((ctypes.c_char * size).from_address(region.address)).cast("B")


def _receive(connection: socket.socket, received: bytearray) -> bool:
    """Read what is there; False when the other side has closed."""
    try:
        data = connection.recv(LONGEST_REQUEST)
    except BlockingIOError:
        return True
    received += data
    return bool(data)


def _expect_nothing(connection: socket.socket) -> None:
    """Raise for a link whose source has left, or says what nobody asked for.

    Nothing else would read it, and it would never stop being readable.
    """
    try:
        connection.recv(1)
    except BlockingIOError:
        return
    raise ConnectionResetError("the source closed the connection")
