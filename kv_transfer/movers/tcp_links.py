"""A TCP sink's connections to its sources, and which of them have something to do.

A cluster may have hundreds of sources, most of them idle. So a poll asks the system once for
all, and not each connection.
"""

import select
import socket
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from kv_transfer.dialing import Dialer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.movers.mover import Interest
from kv_transfer.movers.tcp_serving import BOTH


@dataclass(slots=True)
class SourceLink:
    """A sink's connection to a source: what to send, and where answers go.

    There is no connection until one of the host's addresses has answered. The secret is sent
    first.
    """

    dialer: Dialer
    requests: bytearray
    connection: socket.socket | None = None
    targets: deque[tuple[int, deque[memoryview]]] = field(default_factory=deque)

    @property
    def interest(self) -> tuple[int | None, Interest]:
        """The file descriptor to poll, and the events that say there is something to do."""
        if self.connection is None:
            return self.dialer.interest
        return self.connection.fileno(), BOTH if self.requests else select.POLLIN

    def connect(self, now: float) -> socket.socket | None:
        """Begin or continue to connect; raises OSError if that is impossible."""
        if self.connection is None:
            self.connection = self.dialer.connect(now)
        return self.connection

    def close(self) -> None:
        """Close it at any stage."""
        self.dialer.close()
        if self.connection is not None:
            self.connection.close()


@dataclass(slots=True)
class SourceLinks:
    """All links from `add` to `remove`. Whoever has used a link calls `watch`."""

    _by_address: dict[Address, SourceLink] = field(default_factory=dict)
    _dialing: dict[Address, SourceLink] = field(default_factory=dict)  # no connection yet
    _connected: dict[int, Address] = field(default_factory=dict)  # by file descriptor
    _interests: dict[int, Interest] = field(default_factory=dict)  # of those
    _waiting: "select.poll" = field(default_factory=lambda: select.poll())

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Those of all links."""
        return tuple(self._by_address)

    @property
    def interests(self) -> Mapping[int, Interest]:
        """All file descriptors; for writing only while there is something to write."""
        dialing = [link.interest for link in self._dialing.values()]
        announced = {number: what for number, what in dialing if number is not None}
        return {**self._interests, **announced}

    def get(self, address: Address) -> SourceLink | None:
        """The link to this source."""
        return self._by_address.get(address)

    def add(self, address: Address, link: SourceLink) -> None:
        """There must be none to this address."""
        self._by_address[address] = self._dialing[address] = link
        self.watch(address, link)

    def ready(self) -> list[tuple[Address, SourceLink]]:
        """The links that may make progress now. Connecting is a matter of time, too."""
        ready = [self._connected[number] for number, _ in self._waiting.poll(0)]
        return [(address, self._by_address[address]) for address in (*self._dialing, *ready)]

    def watch(self, address: Address, link: SourceLink) -> None:
        """Wait for what the link waits for now."""
        number, interest = link.interest
        if link.connection is None or number is None:
            return
        self._dialing.pop(address, None)
        self._connected[number] = address
        if self._interests.get(number) != interest:
            self._interests[number] = interest
            self._waiting.register(number, interest)

    def remove(self, address: Address) -> SourceLink | None:
        """Close and return the link to this source, if there is one."""
        if link := self._by_address.pop(address, None):
            self._dialing.pop(address, None)
            number, _ = link.interest
            if number is not None and self._connected.get(number) == address:
                self._waiting.unregister(number)
                del self._connected[number], self._interests[number]
            link.close()
        return link
