"""The hub's registry: what it takes in goes onto the board, for the registries of workers."""

from dataclasses import dataclass, field

import msgspec

from discovery.registration import Registration
from discovery.registry import Node, Registry, node_address
from proxy.workers.api import NODE, Adopt
from proxy.workers.board import Board
from proxy.workers.words import Heard

_decoder = msgspec.msgpack.Decoder(Heard)


@dataclass(slots=True)
class PublishedRegistry(Registry):
    """Workers forget who is silent by themselves: they know when each was heard."""

    board: Board = field(default_factory=Board)

    def apply(
        self, registration: Registration, *, now: float, static: bool = False
    ) -> Node | None:
        """See Registry; a late word of a process that is gone is not passed on."""
        new = Registry.apply(self, registration, now=now, static=static)
        node = self.at(registration.http_address)
        if node is not None and node.registration is registration:
            value = msgspec.msgpack.encode(Heard(now, registration))
            self.board.put(NODE, registration.http_address, value)
        return new

    def expire(self, *, now: float) -> list[Node]:
        """See Registry."""
        late = Registry.expire(self, now=now)
        for node in late:
            self.board.forget(NODE, node_address(node))
        return late


def adopting(registry: Registry) -> Adopt:
    """A worker takes in what the hub has heard."""

    def adopt(_address: str, value: bytes | None) -> None:
        if value is not None:
            heard = _decoder.decode(value)
            registry.apply(heard.registration, now=heard.at)

    return adopt
