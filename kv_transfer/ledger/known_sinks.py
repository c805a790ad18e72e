"""The sinks that said Hello to this source, and the checksums that each needs. Pure."""

from dataclasses import dataclass, field

from kv_transfer.blocks.checksum_mapping import SequenceChecksums, source_checksums
from kv_transfer.checking import CheckLevel
from kv_transfer.layout import KvLayout, can_pull
from kv_transfer.wire import Hello

Peer = bytes
ChecksumSpec = tuple[CheckLevel, SequenceChecksums]
"""A sink's check level, and what each checksum covers: blocks, or parts of them
(blocks/checksum_mapping.py).
"""
MOST_KNOWN_SINKS = 4096


@dataclass(slots=True)
class KnownSinks:
    """The sinks whose layout fits, at most `most`: the least recently seen is dropped.

    A sink that was dropped is answered with Stranger, and says Hello again.
    """

    fingerprint: str
    layout: KvLayout
    most: int = MOST_KNOWN_SINKS
    _checksum_specs: dict[Peer, ChecksumSpec] = field(default_factory=dict)

    def admit(self, peer: Peer, hello: Hello) -> str | None:
        """Add or replace a sink; returns None, or why our KV does not fit, as seen there."""
        self._checksum_specs.pop(peer, None)
        if hello.fingerprint != self.fingerprint:
            return f"fingerprint is {self.fingerprint} there and {hello.fingerprint} here"
        if reason := can_pull(self.layout, hello.layout):
            return reason
        mapping = source_checksums(self.layout, hello.layout)
        self._checksum_specs[peer] = hello.level, mapping
        if len(self._checksum_specs) > self.most:  # sinks that are long gone never say so
            del self._checksum_specs[next(iter(self._checksum_specs))]
        return None

    def touch(self, peer: Peer) -> bool:
        """Mark a sink as recently seen; False if it is not known."""
        if peer not in self._checksum_specs:
            return False
        self._checksum_specs[peer] = self._checksum_specs.pop(peer)
        return True

    def checksum_spec(self, peer: Peer) -> ChecksumSpec:
        """The checksums that a known sink needs."""
        return self._checksum_specs[peer]
