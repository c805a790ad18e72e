"""The TCP mover: plain sockets, from KV memory straight into KV memory.

For machines on which NIXL is not available. A sink keeps one connection to each source. It
first sends the source's secret, which is in the card, and then requests with lists of runs; the
source answers with the bytes of all regions, in the order asked. Requests are answered one
after another. A stream has no blocks: neighbours on one side are one run there, whatever they
are on the other. If the two sides have different layouts, a request says which parts of a block
it wants.

    request   tcp_requests.py
    answer    the bytes; a malformed request ends the connection (tcp_serving.py)
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from kv_transfer.blocks.runs import BlockRuns, merge_runs
from kv_transfer.dialing import Dialer
from kv_transfer.errors import (
    PeerUnreachable,
    TransferCancelled,
    TransferError,
    UnusableMemory,
)
from kv_transfer.ledger.known_sources import Address
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.lookup import Lookup
from kv_transfer.movers.mover import Interest, ReadEnd
from kv_transfer.movers.spans import slot_layouts
from kv_transfer.movers.streams import receive_views, send_bytes
from kv_transfer.movers.tcp_links import SourceLink, SourceLinks
from kv_transfer.movers.tcp_requests import framed, split_runs
from kv_transfer.movers.tcp_serving import RegionServer
from kv_transfer.regions import Region
from kv_transfer.ticket import HIGHEST_PORT
from kv_transfer.wire import Welcome, one_error


class _TcpCard(msgspec.Struct, frozen=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=HIGHEST_PORT)]
    secret: bytes


@dataclass(slots=True)
class TcpMover:
    """Serves our regions, and reads others' over links that it opens itself.

    A link that breaks while nothing is read over it is opened again by the next read.
    """

    serving: RegionServer
    card: bytes
    look_up: Callable[[str, int], Lookup] = Lookup.of
    clock: Callable[[], float] = time.monotonic
    _cards: dict[Address, _TcpCard] = field(default_factory=dict)
    _links: SourceLinks = field(default_factory=SourceLinks)
    _ended: list[ReadEnd] = field(default_factory=list)

    @classmethod
    def start(
        cls, bind_host: str, advertise_host: str, regions: Sequence[Region]
    ) -> "TcpMover":
        """Listen on a port that the system picks; raises UnusableMemory for device memory."""
        for region in regions:
            if region.device != "cpu":
                raise UnusableMemory(
                    f"--kv-connector tcp moves KV in main memory, and not on {region.device}: "
                    "nixl does"
                )
        serving = RegionServer.start(bind_host, regions)
        card = _TcpCard(advertise_host, serving.port, serving.secret)
        return cls(serving, msgspec.msgpack.encode(card))

    @property
    def needs_polling(self) -> bool:
        """Peers that read are announced by sockets."""
        return False

    @property
    def pending(self) -> bool:
        """True only for reads that have ended; `interests` announces the rest."""
        return bool(self._ended)

    @property
    def interests(self) -> Mapping[int, Interest]:
        """All sockets; for writing only while there is something to write."""
        return {**self.serving.interests, **self._links.interests}

    def connect(self, address: Address, welcome: Welcome) -> None:
        """Begin to connect; a failure appears at the first read."""
        self.disconnect(address)
        try:
            with one_error():
                card = msgspec.msgpack.decode(welcome.cards[0], type=_TcpCard)
        except (msgspec.DecodeError, IndexError) as error:
            raise PeerUnreachable(f"{address}: {error!r}") from error
        self._open(address, card)
        self._cards[address] = card

    def disconnect(self, address: Address) -> None:
        """Close the link; its reads are cancelled."""
        self._cards.pop(address, None)
        self._end(address, TransferCancelled())

    def read(self, order: ReadOrder) -> None:
        """Request all runs of one order."""
        try:
            link = self._link_to(order.address)
        except PeerUnreachable as error:
            self._ended.append((order.read_id, error))
            return
        wanted, into = slot_layouts(order.cut)
        views = deque[memoryview]()
        for some in split_runs(BlockRuns.of(order.runs)):
            link.requests += framed(some, wanted)
            views.extend(self.serving.views(merge_runs(some.ours, some.counts), into))
        link.targets.append((order.read_id, views))
        self._drive(order.address, link)

    def poll(self) -> Sequence[ReadEnd]:
        """Accept, answer, request and receive as far as the sockets allow."""
        self.serving.poll()
        for address, link in self._links.ready():
            self._drive(address, link)
        ended, self._ended = self._ended, []
        return ended

    def stalled_sources(self) -> Collection[Address]:
        """Sockets announce everything."""
        return ()

    def close(self) -> None:
        """Close every socket."""
        for address in self._links.addresses:
            self.disconnect(address)
        self.serving.close()

    def _link_to(self, address: Address) -> SourceLink:
        """The link, or a new one if it broke; raises PeerUnreachable."""
        if link := self._links.get(address):
            return link
        if card := self._cards.get(address):
            return self._open(address, card)
        raise PeerUnreachable(f"{address} was never met")

    def _open(self, address: Address, card: _TcpCard) -> SourceLink:
        """Begin to connect; raises PeerUnreachable."""
        try:
            dialer = Dialer(self.look_up(card.host, card.port))
            link = SourceLink(dialer, bytearray(card.secret))
            link.connect(self.clock())
        except OSError as error:
            raise PeerUnreachable(f"{address}: {error!r}") from error
        self._links.add(address, link)
        return link

    def _drive(self, address: Address, link: SourceLink) -> None:
        try:
            self._progress(link)
        except OSError as error:
            self._end(address, PeerUnreachable(f"{address}: {error!r}"))
        else:
            self._links.watch(address, link)

    def _progress(self, link: SourceLink) -> None:
        """Connect, request and receive as far as possible; raises OSError."""
        if (connection := link.connect(self.clock())) is None:
            return
        send_bytes(connection, link.requests)
        while link.targets:
            read_id, views = link.targets[0]
            if not receive_views(connection, views):
                return
            link.targets.popleft()
            self._ended.append((read_id, None))
        _expect_nothing(connection)

    def _end(self, address: Address, error: TransferError) -> None:
        """Close the link, if there is one, and end its reads."""
        if link := self._links.remove(address):
            self._ended += [(read_id, error) for read_id, _ in link.targets]


def _expect_nothing(connection: socket.socket) -> None:
    """Raise if the source has closed the link, or has sent unrequested bytes.

    Nothing else would read those, and the link would stay readable forever.
    """
    try:
        connection.recv(1)
    except BlockingIOError:
        return
    raise ConnectionResetError("the source closed the connection")
