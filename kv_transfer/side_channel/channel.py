"""The messages of the side channel: sinks are identified by name, sources by address."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from kv_transfer.errors import PeerUnreachable
from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.ledger.known_sources import Address
from kv_transfer.side_channel.frames import BadFrames
from kv_transfer.side_channel.introduction import MALFORMED, NotIntroduced
from kv_transfer.side_channel.log_throttle import LogThrottle
from kv_transfer.side_channel.poller import Ready
from kv_transfer.side_channel.server import SideChannelServer
from kv_transfer.side_channel.source_connection import SourceConnection
from kv_transfer.wire import (
    FromSink,
    FromSource,
    TurnedAway,
    decode_from_sink,
    decode_from_source,
    encode,
)

AT_SOURCE = "at source"
TURNED_AWAY = "turned away %s connections to the KV port, of %s: %s"
DROP_LOG_LINES = {
    MALFORMED: "dropped %s messages, of %s: %s",
    AT_SOURCE: "was turned away %s times by KV ports, such as %s: %s",
}
log = logging.getLogger(__name__)


@dataclass(slots=True)
class SideChannel:
    """Owns all connections; messages that cannot be read are sometimes logged.

    `refused` counts connections of sinks that were refused or cut, by reason.
    """

    reception: SideChannelServer
    name: Peer
    refused: Counter[str] = field(default_factory=Counter)
    _ways: dict[Address, SourceConnection] = field(default_factory=dict)
    _junk: dict[str, LogThrottle] = field(default_factory=lambda: defaultdict(LogThrottle))

    def receive_from_sinks(self, ready: Ready, now: float) -> Iterator[tuple[Peer, FromSink]]:
        """Messages of the sinks that connected to this node."""
        for peer, said in self.reception.receive(ready, now):
            if isinstance(said, BadFrames):
                self.refused[_reason(said)] += 1
                self._drop(peer, said, now)
                continue
            try:
                message = decode_from_sink(said)
            except msgspec.DecodeError as error:
                self._drop(peer, error, now)
            else:
                yield peer, message

    def receive_from_sources(
        self, ready: Ready, now: float
    ) -> Iterator[tuple[Address, FromSource]]:
        """Messages of the sources that this node connected to."""
        for address, way in list(self._ways.items()):
            for frame in way.receive(ready, now):
                try:
                    message = decode_from_source(frame)
                except msgspec.DecodeError as error:
                    self._drop(address, error, now)
                else:
                    if isinstance(message, TurnedAway):
                        self._drop(address, NotIntroduced(message.reason, AT_SOURCE), now)
                    yield address, message

    def send_to_sink(self, peer: Peer, message: FromSource) -> None:
        """Send to a sink; dropped if it is not connected."""
        self.reception.send(peer, encode(message))

    def send_to_source(self, address: Address, message: FromSink, now: float) -> None:
        """Send to a source; raises PeerUnreachable if too many messages to it wait."""
        way = self._ways.get(address)
        if way is None:
            reception = self.reception
            way = SourceConnection(address, self.name, reception.waiting)
            way.introductions = reception.introductions
            self._ways[address] = way
        try:
            way.send(encode(message), now)
        except BadFrames as error:
            raise PeerUnreachable(f"{address}: {error}") from error

    def disconnect(self, address: Address) -> None:
        """Close the connection to this source."""
        if way := self._ways.pop(address, None):
            way.close()

    def close(self) -> None:
        """Close all connections and the port."""
        for way in self._ways.values():
            way.close()
        self.reception.close()

    def _drop(self, sender: object, error: Exception, now: float) -> None:
        reason = _reason(error)
        if count := self._junk[reason].count_one(now):
            log.warning(DROP_LOG_LINES.get(reason, TURNED_AWAY), count, sender, error)


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, NotIntroduced) else MALFORMED
