"""Whether the proxies that a node registers with are there, and take it in.

ZMQ tells of a connection that stands, and of its end. What stands may be a proxy with another
cluster key: it drops what we say, and answers nobody whom it does not take in (answers.py).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import zmq
from zmq.utils.monitor import parse_monitor_message

from discovery.answers import is_answer

PATIENCE_S = 5.0  # a proxy that is started with its nodes, or again, is there by then
MOST_UNANSWERED = 10  # registrations; a proxy that takes them answers more than two of them
STANDS = zmq.EVENT_HANDSHAKE_SUCCEEDED

SILENT = (
    "the proxy at %s has answered none of the last %d registrations, so it does not take this "
    "node in, and no work comes here from it: is --cluster-key the same on both sides, and are "
    "both clocks right? Its log says why (a proxy that is not of pdserve never answers)"
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Reach:
    """One proxy; `away_since` is None while a connection to it stands.

    `unanswered`: so many registrations were said since then, or since its last answer.
    """

    proxy: str
    _dealer: zmq.Socket[bytes]
    _monitor: zmq.Socket[bytes]
    away_since: float | None
    told: bool = False
    unanswered: int = 0
    told_of_silence: bool = False

    @classmethod
    def of(cls, dealer: zmq.Socket[bytes], proxy: str, *, now: float) -> Self:
        """Before it connects. Whoever asks closes."""
        monitor = dealer.get_monitor_socket(STANDS | zmq.EVENT_DISCONNECTED)
        return cls(proxy, dealer, monitor, now)

    def look(self, *, now: float, spoke: bool = False) -> None:
        """A line when it was away for too long or does not answer, and one when that is over.

        To be called on a timer, after what was said, if we `spoke`: what ZMQ tells and nobody
        reads is kept.
        """
        for stands in self._news():
            self.away_since = None if stands else self.away_since or now
        self._tell_of_ways(now)
        self._tell_of_silence(answered=self._answered(), spoke=spoke)

    def _tell_of_ways(self, now: float) -> None:
        if self.away_since is None and self.told:
            logger.info("the proxy at %s is there now", self.proxy)
            self.told = False
        elif self.away_since is not None and not self.told and self._late(now):
            logger.warning("no proxy is reached at %s: no work comes here from it", self.proxy)
            self.told = True

    def _tell_of_silence(self, *, answered: bool, spoke: bool) -> None:
        if answered or not spoke or self.away_since is not None:
            self.unanswered = 0
        else:
            self.unanswered += 1
        if answered and self.told_of_silence:
            logger.info("the proxy at %s takes this node in now", self.proxy)
            self.told_of_silence = False
        elif self.unanswered >= MOST_UNANSWERED and not self.told_of_silence:
            logger.warning(SILENT, self.proxy, self.unanswered)
            self.told_of_silence = True

    def close(self) -> None:
        """Hear of no more. The context has to be terminated next."""
        self._monitor.close(linger=0)

    def _late(self, now: float) -> bool:
        return self.away_since is not None and now - self.away_since >= PATIENCE_S

    def _answered(self) -> bool:
        """Whether it has said so since the last look."""
        found = False
        while True:
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            found = found or is_answer(frames[-1])

    def _news(self) -> Sequence[bool]:
        """What has become of connections since the last look: whether each stood, or ended."""
        found: list[bool] = []
        while True:
            try:
                told = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            found.append(parse_monitor_message(told)["event"] == STANDS)
