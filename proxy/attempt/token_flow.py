"""The fast path of plain tokens: from the decode leg to the client, bypassing the pipeline."""

from dataclasses import dataclass

from api.generator import Tap
from proxy.attempt.progress import Progress
from proxy.attempt.relay import Relay
from proxy.health.health import Health
from proxy.routing.in_flight import PlanInFlight


@dataclass(frozen=True, slots=True)
class TokenFlow:
    """A Tap in front of the client's, which counts tokens as the loop counts events.

    In use from the moment `Relay.pass_through` lets an event pass until the next other event.
    """

    tap: Tap
    progress: Progress
    relay: Relay
    flight: PlanInFlight
    health: Health

    def take(self, tokens: tuple[int, ...]) -> bool:
        """See Tap. While any breaker knows of failures, tokens go through the loop, which
        reports the success of their node.
        """
        if self.health.has_failures or not self.tap.take(tokens):
            return False
        self.relay.count_passed(len(tokens))
        self.flight.count_tokens(len(tokens))
        self.progress.record_tokens(tokens)
        return True
