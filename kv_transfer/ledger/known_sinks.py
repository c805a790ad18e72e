"""The sinks that a source has met: who may read, how carefully, and in which parts. Pure."""

from dataclasses import dataclass, field

from kv_transfer.blocks.checksum_mapping import source_checksum_mapping
from kv_transfer.blocks.mapping import WHOLE_BLOCKS, BlockMapping
from kv_transfer.checking import CheckLevel
from kv_transfer.layout import KvLayout, can_pull
from kv_transfer.wire import Hello

Peer = bytes
ChecksumSpec = tuple[CheckLevel, BlockMapping]
"""How carefully a sink wants to look at what it reads, and what is to be summed for it: whole
blocks, or parts of them (blocks/checksum_mapping.py).
"""
MOST_KNOWN_SINKS = 4096


@dataclass(slots=True)
class KnownSinks:
    """One entry for each sink that said Hello and fits; `most` of them, the latest to ask.

    A sink that was forgotten is a Stranger when it comes back, and says Hello again.
    """

    fingerprint: str
    layout: KvLayout
    most: int = MOST_KNOWN_SINKS
    _wishes: dict[Peer, ChecksumSpec] = field(default_factory=dict)

    def greet(self, peer: Peer, hello: Hello) -> str | None:
        """Take it in; or else why no KV of ours fits it. What it was before is forgotten."""
        self._wishes.pop(peer, None)
        if hello.fingerprint != self.fingerprint:
            return f"fingerprint is {self.fingerprint} here and {hello.fingerprint} there"
        if reason := can_pull(self.layout, hello.layout):
            return reason
        self._wishes[peer] = hello.level, source_checksum_mapping(self.layout, hello.layout)
        if len(self._wishes) > self.most:  # sinks that are long gone never say so
            del self._wishes[next(iter(self._wishes))]
        return None

    def asks(self, peer: Peer) -> bool:
        """Whether it was met; who asked last is forgotten last."""
        if peer not in self._wishes:
            return False
        self._wishes[peer] = self._wishes.pop(peer)
        return True

    def wish(self, peer: Peer) -> ChecksumSpec:
        """What checksums it needs."""
        return self._wishes.get(peer, (CheckLevel.OFF, WHOLE_BLOCKS))
