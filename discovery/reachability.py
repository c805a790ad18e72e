"""Whether a node's proxies are reachable and accept its registrations.

ZMQ reports when a connection is made and when it ends. The peer may be a proxy with another
cluster key: it drops registrations, and replies only to those that it accepts (replies.py).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from discovery.replies import is_reply

PATIENCE_S = 5.0  # enough for a proxy that starts with its nodes, or restarts
MOST_UNANSWERED = 10  # registrations; a proxy that accepts them answers more than two of these
STANDS, BEGAN = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_CONNECTED
ENDED, RETRIED = zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_RETRIED

AWAY = "no proxy is reached at %s: no work comes here from it"
STRANGER = (
    "what answers at %s is no proxy, or not the port where nodes register: no work comes here "
    "from it; --proxy wants the address that the proxy's log tells (nodes register at ...), "
    "which is not that of its HTTP server"
)
SILENT = (
    "the proxy at %s has answered none of the last %d registrations, so it does not take this "
    "node in, and no work comes here from it: is --cluster-key the same on both sides, and are "
    "both clocks right? Its log says why (a proxy that is not of pdserve never answers)"
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProxyReachability:
    """One proxy; `away_since` is None while it is connected.

    `unanswered`: registrations sent since it was connected, or since its last reply.
    `stranger`: the last connection was taken and then ended without a word of ZMQ's protocol.
    """

    proxy: str
    _dealer: zmq.Socket[bytes]
    _monitor: zmq.Socket[bytes]
    away_since: float | None
    logged_away: bool = False
    unanswered: int = 0
    logged_silence: bool = False
    stranger: bool = False
    _last_event: int | None = None

    @classmethod
    def of(cls, dealer: zmq.Socket[bytes], proxy: str, *, now: float) -> Self:
        """Call it before the dealer connects; the caller closes the result."""
        monitor = dealer.get_monitor_socket(STANDS | BEGAN | ENDED | RETRIED)
        return cls(proxy, dealer, monitor, now)

    def check(self, *, now: float, sent: bool = False) -> None:
        """Log when the proxy is away for too long or does not reply, and when that is over.

        Call it on a timer; `sent`: a registration was sent just before. ZMQ queues its events
        until they are read here.
        """
        for event in self._connection_events():
            self._follow(event, now)
        self._log_connection(now)
        self._log_replies(answered=self._answered(), sent=sent)

    def begin_anew(self) -> None:
        """The dealer has left for another address: a connection made meanwhile is gone.

        The proxy was away at the last check, and stays so.
        """
        self._connection_events()
        self._last_event = None

    def given_up(self) -> bool:
        """Whether ZMQ has left the peer for good, as it does if that breaks its protocol.

        True only once; then the dealer has to connect again.
        """
        if self._last_event != ENDED:
            return False
        self._last_event = None
        return True

    def _follow(self, event: int, now: float) -> None:
        if event == STANDS:
            self.away_since = None
        elif event == ENDED:
            self.away_since = self.away_since or now
            self.stranger = self._last_event == BEGAN
        self._last_event = event

    def _log_connection(self, now: float) -> None:
        if self.away_since is None and self.logged_away:
            logger.info("the proxy at %s is there now", self.proxy)
            self.logged_away = False
        elif self.away_since is not None and not self.logged_away and self._late(now):
            logger.warning(STRANGER if self.stranger else AWAY, self.proxy)
            self.logged_away = True

    def _log_replies(self, *, answered: bool, sent: bool) -> None:
        if answered or not sent or self.away_since is not None:
            self.unanswered = 0
        else:
            self.unanswered += 1
        if answered and self.logged_silence:
            logger.info("the proxy at %s takes this node in now", self.proxy)
            self.logged_silence = False
        elif self.unanswered >= MOST_UNANSWERED and not self.logged_silence:
            logger.warning(SILENT, self.proxy, self.unanswered)
            self.logged_silence = True

    def close(self) -> None:
        """Stop monitoring. The context must be terminated next."""
        self._monitor.close(linger=0)

    def _late(self, now: float) -> bool:
        return self.away_since is not None and now - self.away_since >= PATIENCE_S

    def _answered(self) -> bool:
        """Whether a reply came since the last check."""
        found = False
        while True:
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            found = found or is_reply(frames[-1])

    def _connection_events(self) -> Sequence[int]:
        """ZMQ's events since the last check: BEGAN, STANDS, ENDED or RETRIED."""
        found: list[int] = []
        while True:
            try:
                told = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            found.append(parse_monitor_message(told)["event"])
