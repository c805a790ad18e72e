"""The sinks that a source has met: who may read, and how carefully. Pure."""

from dataclasses import dataclass, field

from kv_transfer.checking import Level
from kv_transfer.layout import KvLayout, can_pull
from kv_transfer.wire import Hello

Peer = bytes
MOST_GUESTS = 4096


@dataclass(slots=True)
class Guests:
    """One entry for each sink that said Hello and fits; `most` of them, the latest to ask.

    A sink that was forgotten is a Stranger when it comes back, and says Hello again.
    """

    fingerprint: str
    layout: KvLayout
    most: int = MOST_GUESTS
    _levels: dict[Peer, Level] = field(default_factory=dict)

    def greet(self, peer: Peer, hello: Hello) -> str | None:
        """Take it in; or else why no KV of ours fits it. What it was before is forgotten."""
        self._levels.pop(peer, None)
        if hello.fingerprint != self.fingerprint:
            return f"fingerprint is {self.fingerprint} here and {hello.fingerprint} there"
        if reason := can_pull(self.layout, hello.layout):
            return reason
        self._levels[peer] = hello.level
        if len(self._levels) > self.most:  # sinks that are long gone never say so
            del self._levels[next(iter(self._levels))]
        return None

    def asks(self, peer: Peer) -> bool:
        """Whether it was met; who asked last is forgotten last."""
        if peer not in self._levels:
            return False
        self._levels[peer] = self._levels.pop(peer)
        return True

    def level(self, peer: Peer) -> Level:
        """How carefully it wants to look at what it reads."""
        return self._levels.get(peer, Level.OFF)
