"""Tokens of decode alone: to the client past whoever waits for other events."""

from dataclasses import dataclass

from api.generator import Tap
from proxy.attempt.progress import Progress
from proxy.attempt.relay import Relay
from proxy.health.health import Health
from proxy.routing.flight import Flight


@dataclass(frozen=True, slots=True)
class Flow:
    """A Tap before another, of one attempt: counts what goes by, as it is of events.

    To be used once `relay` lets an event of the node's flow, and until something else comes.
    """

    tap: Tap
    progress: Progress
    relay: Relay
    flight: Flight
    health: Health

    def take(self, tokens: tuple[int, ...]) -> bool:
        """See Tap. Where something is in trouble, it matters which node has brought them."""
        if self.health.troubled or not self.tap.take(tokens):
            return False
        self.relay.flowed(len(tokens))
        self.flight.flowed(len(tokens))
        self.progress.said(tokens)
        return True
