"""The pulls that are over for their source: nothing that they say later counts. Pure.

A pull asks by a name that may pass to another offer. What it sent before it heard of its end
would be taken for a word about that one.
"""

from dataclasses import dataclass, field

from kv_transfer.ledger.known_sinks import Peer
from kv_transfer.wire import Abandon, Leave, Look, Settle

OfPull = Look | Settle | Abandon | Leave
MOST_REMEMBERED = 4096


@dataclass(slots=True)
class EndedPulls:
    """For each sink and key the latest pull that has ended, and why; `most` of them.

    The numbers of a sink's pulls with one key only rise, so the earlier ones are over as well.
    The longest ended is forgotten first: a message is late by seconds at most.
    """

    most: int = MOST_REMEMBERED
    _latest: dict[tuple[Peer, str], tuple[int, str]] = field(default_factory=dict)

    def add(self, peer: Peer, key: str, pull: int, reason: str) -> None:
        """This pull, and the sink's earlier ones with this key, are over."""
        last = self._latest.pop((peer, key), (pull, reason))
        self._latest[peer, key] = max(last, (pull, reason), key=lambda ended: ended[0])
        if len(self._latest) > self.most:
            del self._latest[next(iter(self._latest))]

    def reason(self, peer: Peer, message: OfPull) -> str | None:
        """Why the message's pull is over; None if it is not, or if it is of no pull."""
        pull, reason = self._latest.get((peer, message.key), (-1, ""))
        return None if message.pull is None or message.pull > pull else reason
