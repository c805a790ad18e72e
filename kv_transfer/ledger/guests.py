"""The sinks that a source has met: who may read, how carefully, and in which parts. Pure."""

from dataclasses import dataclass, field

from kv_transfer.blocks.comparing import at_source
from kv_transfer.blocks.cutting import WHOLE, Cut
from kv_transfer.checking import Level
from kv_transfer.layout import KvLayout, can_pull
from kv_transfer.wire import Hello

Peer = bytes
Wish = tuple[Level, Cut]
"""How carefully a sink wants to look at what it reads, and what is to be summed for it: whole
blocks, or parts of them (blocks/comparing.py).
"""
MOST_GUESTS = 4096


@dataclass(slots=True)
class Guests:
    """One entry for each sink that said Hello and fits; `most` of them, the latest to ask.

    A sink that was forgotten is a Stranger when it comes back, and says Hello again.
    """

    fingerprint: str
    layout: KvLayout
    most: int = MOST_GUESTS
    _wishes: dict[Peer, Wish] = field(default_factory=dict)

    def greet(self, peer: Peer, hello: Hello) -> str | None:
        """Take it in; or else why no KV of ours fits it. What it was before is forgotten."""
        self._wishes.pop(peer, None)
        if hello.fingerprint != self.fingerprint:
            return f"fingerprint is {self.fingerprint} here and {hello.fingerprint} there"
        if reason := can_pull(self.layout, hello.layout):
            return reason
        self._wishes[peer] = hello.level, at_source(self.layout, hello.layout)
        if len(self._wishes) > self.most:  # sinks that are long gone never say so
            del self._wishes[next(iter(self._wishes))]
        return None

    def asks(self, peer: Peer) -> bool:
        """Whether it was met; who asked last is forgotten last."""
        if peer not in self._wishes:
            return False
        self._wishes[peer] = self._wishes.pop(peer)
        return True

    def wish(self, peer: Peer) -> Wish:
        """What checksums it needs."""
        return self._wishes.get(peer, (Level.OFF, WHOLE))
