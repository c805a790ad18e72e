"""Tokens on the fast path count as those that go through the loop."""

from dataclasses import dataclass, field

from api.generator import PromptEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from discovery.registry import Registry
from engine.request import FinishReason, Request, RequestId, Sampling
from proxy.attempt.progress import Progress
from proxy.attempt.relay import Relay
from proxy.attempt.token_flow import TokenFlow
from proxy.errors import Cause, NodeFailed
from proxy.health.health import Health
from proxy.routing.in_flight import PlanInFlight, RoutingState
from proxy.routing.plan import Plan, RoutingQuery
from proxy.timeline.choice import ChoiceTimeline
from tests.fakes.taking import Client

D = Node(Registration(Role.DECODE, "d:1", "", "d"), heard_at=0)
REQUEST = Request(RequestId("r"), (1, 2), Sampling(9))
FIRST, TOKENS = TokenEvent((5,)), (6, 7)


@dataclass
class Attempt:
    """A decode node alone has sent its first token."""

    client: Client = field(default_factory=Client)
    state: RoutingState = field(default_factory=RoutingState)
    health: Health = field(default_factory=lambda: Health(Registry()))
    relay: Relay = field(default_factory=lambda: Relay(Plan(None, D)))

    def __post_init__(self) -> None:
        plan, query = Plan(None, D), RoutingQuery.of(REQUEST, 0.0)
        self.flight = PlanInFlight(self.state, plan, query).claim()
        self.progress = Progress(REQUEST, ChoiceTimeline(REQUEST, 0.0))
        parts = self.relay, self.flight, self.health
        self.flow = TokenFlow(self.client, self.progress, *parts)
        self.flight.record_event(D, PromptEvent(0), 1.0)
        self.loop(FIRST)

    def loop(self, event: TokenEvent) -> None:
        assert self.relay.pass_through(D, event) or [*self.relay.forward(D, event)]
        self.progress.record_event(event)
        self.flight.record_event(D, event, 2.0)


def test_they_teach_as_much_and_leave_as_much_to_come() -> None:
    tapped, streamed = Attempt(), Attempt()
    assert tapped.flow.take(TOKENS)
    streamed.loop(TokenEvent(TOKENS))
    for one in (tapped, streamed):
        one.loop(TokenEvent((8,), FinishReason.STOP))
    assert tapped.client.heard == [*TOKENS]
    assert tapped.progress.remaining_request() == streamed.progress.remaining_request()
    assert tapped.progress.timeline.output_tokens == 4
    assert (tapped.relay.forwarded, tapped.relay.received) == (4, {D: 4})
    assert tapped.state.costs.mean_output == streamed.state.costs.mean_output
    assert tapped.state.costs.mean_output != RoutingState().costs.mean_output


def test_what_the_client_does_not_take_counts_for_nothing() -> None:
    attempt = Attempt(Client(room=1))
    assert not attempt.flow.take(TOKENS)
    assert attempt.progress.remaining_request().generated == FIRST.tokens
    assert attempt.relay.forwarded == 1


def known() -> Health:
    registry = Registry()
    registry.apply(D.registration, now=0.0)
    return Health(registry)


def test_while_a_breaker_is_open_the_loop_says_which_node_is_well() -> None:
    attempt = Attempt(health=known())
    failed = NodeFailed("d", "it broke", Cause.BROKEN)
    attempt.health.record_failure(failed, [D], begun=0.0, now=1.0)
    assert not attempt.flow.take(TOKENS)
    assert not attempt.client.heard
