"""Replies to registrations, by which a node knows that a proxy has accepted it.

Dropped registrations get no reply, so that nobody learns about the cluster key by trying.
"""

from dataclasses import dataclass, field

from discovery.errors import MalformedRegistration
from discovery.registration import pack, unpack

REPLY_EVERY = 4
"""Every n-th registration of a connection gets a reply, beginning with the first."""
MOST_CONNECTIONS = 8192
TAKEN = "taken"
REPLY = pack({TAKEN: True})


@dataclass(slots=True)
class ReplySchedule:
    """Counts the registrations of each connection; the oldest connections are forgotten."""

    _counts: dict[bytes, int] = field(default_factory=dict)

    def due(self, connection: bytes) -> bool:
        """Whether to reply to this accepted registration."""
        before = self._counts.get(connection, 0)
        self._counts[connection] = before + 1
        if len(self._counts) > MOST_CONNECTIONS:
            del self._counts[next(iter(self._counts))]
        return before % REPLY_EVERY == 0


def is_reply(frame: bytes) -> bool:
    """Whether a proxy's frame is our reply; other proxies may send anything."""
    try:
        return unpack(frame).get(TAKEN) is True
    except MalformedRegistration:
        return False
