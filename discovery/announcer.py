"""Sends a node's heartbeats: its registration and load, to every proxy, once a second."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import zmq

from discovery.dialler import Dialler
from discovery.reachability import ProxyReachability
from discovery.registration import BEAT_S, Registration, pack, to_map
from discovery.signature import SigningTimes, sign

MOST_THREADS = 64  # that a socket's affinity can tell apart
RECONNECT_MS = 100
LONGEST_RECONNECT_MS = 2000
PING_MS = 2000
LOST_MS = 6000
CONNECT_MS = 2000  # without this the kernel retries a host that is gone ever more rarely


@dataclass(slots=True)
class Announcer:
    """Never blocks. A proxy that was away gets the newest registration when it is back."""

    registration: Callable[[], Registration | None]
    cluster_key: bytes | None
    beat_s: float
    reachabilities: Sequence[ProxyReachability]
    _diallers: Sequence[Dialler]
    _context: zmq.Context[zmq.Socket[bytes]]
    _dealers: Sequence[zmq.Socket[bytes]]
    _stamps: SigningTimes = field(default_factory=SigningTimes)

    @classmethod
    def connect(
        cls,
        proxies: Sequence[str],
        registration: Callable[[], Registration | None],
        *,
        cluster_key: bytes | None = None,
        beat_s: float = BEAT_S,
    ) -> Self:
        """Connect to all these `host:port`; `registration` returns each heartbeat, or None."""
        threads = max(1, min(len(proxies), MOST_THREADS))
        context, dealers = zmq.Context[zmq.Socket[bytes]](threads), list[zmq.Socket[bytes]]()
        reachabilities, diallers = list[ProxyReachability](), list[Dialler]()
        announcer = cls(
            registration, cluster_key, beat_s, reachabilities, diallers, context, dealers
        )
        try:
            for number, proxy in enumerate(proxies):
                now = time.monotonic()
                dealers.append(_dealer(context, number % threads))
                reachabilities.append(ProxyReachability.of(dealers[-1], proxy, now=now))
                diallers.append(Dialler.connect(dealers[-1], proxy, now=now))
        except BaseException:
            announcer.close()
            raise
        return announcer

    async def run(self) -> None:
        """Announce every beat until cancelled, and log which proxies do not accept the node."""
        while True:
            sent = self._announce()
            now = time.monotonic()
            for reach, dialler in zip(self.reachabilities, self._diallers, strict=True):
                reach.check(now=now, sent=sent)
                if reach.given_up():
                    dialler.renew()
                if dialler.check(away=reach.away_since is not None, now=now):
                    reach.begin_anew()
            await asyncio.sleep(self.beat_s)

    def announce_now(self) -> None:
        """Send a heartbeat at once, such as when the node starts to drain."""
        self._announce()

    def _announce(self) -> bool:
        """Send one heartbeat; False if there was no registration to send."""
        if (registration := self.registration()) is None:
            return False
        message = to_map(registration)
        if self.cluster_key:
            message = sign(message, self.cluster_key, wall_time=self._stamps.another())
        frame = pack(message)
        for dealer in self._dealers:
            with suppress(zmq.Again):  # ZMQ has given the peer up; `run` connects again
                dealer.send(frame, zmq.NOBLOCK)
        return True

    def close(self) -> None:
        """Close the sockets; to be called by whoever called `connect`."""
        for reach in self.reachabilities:
            reach.close()
        for dealer in self._dealers:
            dealer.close(linger=0)
        self._context.term()


def _dealer(context: zmq.Context[zmq.Socket[bytes]], thread: int) -> zmq.Socket[bytes]:
    """A socket that keeps only the newest of what could not be sent yet (CONFLATE).

    Its thread of ZMQ's stands still while it looks a name up: no other proxy should wait.
    A domain of ZAP's, whatever its name, makes ZMQ refuse peers of its first protocols. An HTTP
    server's answer looks like one, in several frames, at which CONFLATE aborts the process.
    """
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.AFFINITY, 1 << thread)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.CONFLATE, 1)
    dealer.setsockopt(zmq.ZAP_DOMAIN, b"pdserve")
    dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS)
    dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    dealer.setsockopt(zmq.HEARTBEAT_IVL, PING_MS)
    dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, LOST_MS)
    return dealer
