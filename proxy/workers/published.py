"""The parent's registry, whose registrations the hub passes on to the workers' registries."""

from dataclasses import dataclass, field

import msgspec

from discovery.node import Node
from discovery.registration import Registration
from discovery.registry import Registry
from proxy.workers.api import NODE, UpdateHandler
from proxy.workers.messages import ReceivedRegistration
from proxy.workers.shared_state import SharedState

_decoder = msgspec.msgpack.Decoder(ReceivedRegistration)


@dataclass(slots=True)
class PublishedRegistry(Registry):
    """A Registry that publishes each registration, with the time it was received.

    Workers therefore expire silent nodes by themselves.
    """

    state: SharedState = field(default_factory=SharedState)

    def apply(
        self, registration: Registration, *, now: float, static: bool = False
    ) -> Node | None:
        """See Registry; a late registration of a process that is gone is not published."""
        new = Registry.apply(self, registration, now=now, static=static)
        node = self.at(registration.http_address)
        if node is not None and node.registration is registration:
            value = msgspec.msgpack.encode(ReceivedRegistration(now, registration))
            self.state.put(NODE, registration.http_address, value)
        return new

    def expire(self, *, now: float) -> list[Node]:
        """See Registry."""
        late = Registry.expire(self, now=now)
        for node in late:
            self.state.forget(NODE, node.address)
        return late


def registration_handler(registry: Registry) -> UpdateHandler:
    """Applies registrations that the hub passes on to a worker's registry."""

    def apply(_address: str, value: bytes | None) -> None:
        if value is not None:
            received = _decoder.decode(value)
            registry.apply(received.registration, now=received.at)

    return apply
