"""What may become of the side channel's messages, one at a time.

A connection is in order, and a message that was lost takes nothing else with it. A sink that
let go of one connection and made another may still be heard over the old one, later. A source
answers over the newest that it has heard of.
"""

from collections import deque
from dataclasses import dataclass, field

from kv_transfer.ledger.known_sources import Address


@dataclass(eq=False)
class Pipe:
    """One direction of a connection."""

    peer: bytes
    address: Address
    goes_up: bool
    frames: deque[bytes] = field(default_factory=deque)


@dataclass(eq=False)
class Connection:
    """From a sink, named `peer`, to whatever source lives at `address`."""

    peer: bytes
    address: Address
    is_open: bool = True
    heard: bool = False  # by the source that lives there now

    def __post_init__(self) -> None:
        self.up = Pipe(self.peer, self.address, goes_up=True)
        self.down = Pipe(self.peer, self.address, goes_up=False)


@dataclass
class Network:
    """Every connection that ever was, oldest first; frames wait until they are carried."""

    connections: list[Connection] = field(default_factory=list)

    @property
    def pipes(self) -> list[Pipe]:
        """Those with something in them."""
        both = [pipe for one in self.connections for pipe in (one.up, one.down)]
        return [pipe for pipe in both if pipe.frames]

    def ask(self, peer: bytes, address: Address, frame: bytes) -> None:
        """From a sink to a source; connects where there is no connection."""
        here = [one for one in self._between(peer, address) if one.is_open]
        if not here:
            here = [Connection(peer, address)]
            self.connections += here
        here[-1].up.frames.append(frame)

    def answer(self, peer: bytes, address: Address, frame: bytes) -> None:
        """From a source to a sink; lost where the sink has left."""
        known = [one for one in self._between(peer, address) if one.heard]
        if known and known[-1].is_open:
            known[-1].down.frames.append(frame)

    def carry(self, pipe: Pipe) -> bytes:
        """The next message, out of the network."""
        for one in self.connections:
            if one.up is pipe:
                one.heard = True
        return pipe.frames.popleft()

    def part(self, peer: bytes, address: Address) -> None:
        """The sink has closed its end: what it has sent may still arrive."""
        for one in self._between(peer, address):
            one.is_open = False
            one.down.frames.clear()
        self._sweep()

    def vanish(self, peer: bytes, address: Address) -> None:
        """The node of this name at this address is gone, and another one will be there."""
        for one in self.connections:
            if one.peer == peer:
                one.is_open = False
                one.down.frames.clear()
            if one.address == address:
                one.heard = False

    def _between(self, peer: bytes, address: Address) -> list[Connection]:
        return [one for one in self.connections if (one.peer, one.address) == (peer, address)]

    def _sweep(self) -> None:
        self.connections = [one for one in self.connections if one.is_open or one.up.frames]
