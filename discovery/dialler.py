"""Connects a socket to a proxy's name, at the name's IPv4 and IPv6 addresses in turn.

ZMQ tries one address of a name, and the proxy may listen at another: where `localhost` is ::1
as well as 127.0.0.1, it would be the first, and a proxy listens at the second unless told.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import zmq

from discovery.address import parse_address

TURN_S = 2.0  # one try takes as long at most (CONNECT_MS of announcer.py)


class Dialling(Protocol):
    """What it needs of a ZMQ socket."""

    def setsockopt(self, option: int, value: int, /) -> None: ...  # noqa: D102
    def connect(self, addr: str) -> object: ...  # noqa: D102
    def disconnect(self, addr: str) -> None: ...  # noqa: D102


@dataclass(slots=True)
class Dialler:
    """`literal`: the proxy is an address, not a name, so that there is nothing to try."""

    _socket: Dialling
    _endpoint: str
    _literal: bool
    _ipv6: bool
    _turned_at: float

    @classmethod
    def connect(cls, socket: Dialling, proxy: str, *, now: float) -> Self:
        """Connect to a `host:port`; of a name, to its IPv4 address first."""
        host, _ = parse_address(proxy)
        ipv6 = ":" in host
        dialler = cls(socket, f"tcp://{proxy}", ipv6 or _is_ipv4(host), ipv6, now)
        dialler._connect()
        return dialler

    def check(self, *, away: bool, now: float) -> bool:
        """Try the other family if the proxy is away for long. Call it on a timer.

        True: it is tried now, and what ZMQ has reported until now was of the one before.
        """
        if not away or self._literal:
            self._turned_at = now
        if now - self._turned_at < TURN_S:
            return False
        self._ipv6, self._turned_at = not self._ipv6, now
        self.renew()
        return True

    def renew(self) -> None:
        """Connect again, as ZMQ does not by itself where a peer broke its protocol."""
        self._socket.disconnect(self._endpoint)
        self._connect()

    def _connect(self) -> None:
        self._socket.setsockopt(zmq.IPV6, self._ipv6)
        self._socket.connect(self._endpoint)


def _is_ipv4(host: str) -> bool:
    return host.replace(".", "").isdecimal()
