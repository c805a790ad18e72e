"""The sinks that a source has met: who may read, and whose reads may need our agent. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kv_transfer.checking import Level
from kv_transfer.layout import KvLayout, can_pull
from kv_transfer.wire import Hello

Peer = bytes
MOST_GUESTS = 4096
ELSEWHERE = ""  # no machine's name


@dataclass(slots=True)
class Guests:
    """One entry for each sink that said Hello and fits; `most` of them, the latest to ask.

    A sink that was forgotten is a Stranger when it comes back, and says Hello again.
    """

    fingerprint: str
    layout: KvLayout
    most: int = MOST_GUESTS
    _machines: dict[Peer, str] = field(default_factory=dict)
    _levels: dict[Peer, Level] = field(default_factory=dict)
    _proven: set[Peer] = field(default_factory=set)  # who has read something before

    def greet(self, peer: Peer, hello: Hello) -> str | None:
        """Take it in; or else why no KV of ours fits it. What it was before is forgotten."""
        self._forget(peer)
        if hello.fingerprint != self.fingerprint:
            return f"fingerprint is {self.fingerprint} here and {hello.fingerprint} there"
        if reason := can_pull(self.layout, hello.layout):
            return reason
        self._machines[peer], self._levels[peer] = hello.machine, hello.level
        if len(self._machines) > self.most:  # sinks that are long gone never say so
            self._forget(next(iter(self._machines)))
        return None

    def asks(self, peer: Peer) -> bool:
        """Whether it was met; who asked last is forgotten last."""
        if peer not in self._machines:
            return False
        self._machines[peer] = self._machines.pop(peer)
        return True

    def level(self, peer: Peer) -> Level:
        """How carefully it wants to look at what it reads."""
        return self._levels.get(peer, Level.OFF)

    def has_read(self, peer: Peer) -> None:
        """Its connection to our memory stands."""
        if peer in self._machines:
            self._proven.add(peer)

    def stands_still(self, peer: Peer) -> None:
        """One of its reads does. While its connection is being made we poll for it anyway; but
        if it stands, memory is not shared: it may as well be on another machine.
        """
        if peer in self._proven:
            self._machines[peer] = ELSEWHERE

    def need_driving(self, sinks: Iterable[Peer], machine: str) -> bool:
        """Whether one of these, if it reads right now, needs our agent to be polled.

        That is a sink on another machine, or as good as there, and any whose connection is
        being made.
        """
        return any(
            self._machines.get(sink) != machine or sink not in self._proven for sink in sinks
        )

    def _forget(self, peer: Peer) -> None:
        self._machines.pop(peer, None)
        self._levels.pop(peer, None)
        self._proven.discard(peer)
