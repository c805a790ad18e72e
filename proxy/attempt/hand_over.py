"""One attempt's decode leg: opened with the prefill leg's ticket, elsewhere with the same one.

A decode node that has another beside it is asked to say when it has had no room for a while.
Each is asked so once; the last one is asked to wait, in the place that the request's age
gives it.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from msgspec.structs import replace

from api.generator import WHOLE, Event, Leg
from discovery.registry import Node, Registry
from engine.request import Request
from kv_transfer.ticket import KvTicket
from proxy.attempt.legs import Heard, Legs, News, Telling
from proxy.attempt.progress import unscored
from proxy.attempt.relay import Relay
from proxy.errors import NodeFailed
from proxy.health.health import Health
from proxy.health.telling import note_failure
from proxy.routing.flight import Flight
from proxy.routing.plan import Plan
from proxy.routing.planner import Plans
from proxy.timeline.choice import ChoiceTimeline


class NodeClient(Protocol):
    """The one call a proxy makes, for both legs."""

    def generate(
        self, node: Node, request: Request, leg: Leg
    ) -> AsyncGenerator[Event] | Telling:
        """Raises NodeFailed while iterating, also for silence; closing it aborts the leg.

        A leg that holds answers with a ticket, one token, and the end when its KV was taken.
        Any other answers with every token that is missing: from the ticket's KV, or from
        scratch when there is no ticket.
        """


@dataclass(slots=True)
class HandOver:
    """Opens decode legs among `legs`, as `relay` has need of them."""

    client: NodeClient
    registry: Registry
    health: Health
    planner: Plans
    clock: Callable[[], float]
    flight: Flight
    relay: Relay
    legs: Legs
    timeline: ChoiceTimeline
    orphan_s: float
    begun: float  # the attempt's
    _tried: set[str] = field(default_factory=set)  # they had no room
    _failed: set[str] = field(default_factory=set)
    _since: float | None = None  # when decode was asked first
    _outer_id: str | None = None  # what both legs are called where nodes go by it

    @property
    def request(self) -> Request:
        """As this try continues it."""
        return self.flight.ask.request

    def next(self) -> Heard:
        """The legs' next word; raises NodeFailed where decode's comes too late to matter."""
        orphaned = self.relay.orphaned
        return self._soon(orphaned) if orphaned else self.legs.next()

    async def _soon(self, orphaned: NodeFailed) -> tuple[Node, News] | None:
        try:
            return await self.legs.next(self.orphan_s)
        except TimeoutError:
            raise orphaned from None

    def call(self, node: Node, request: Request, leg: Leg) -> None:
        """Open one leg. To vLLM's nodes both have one id: an attempt's, and no client's."""
        if not node.ours:
            self._outer_id = self._outer_id or uuid4().hex
            leg = replace(leg, keep_open=False, outer_id=self._outer_id)
        placed = self.timeline.record_call(node, leg, self.clock())
        self.legs.open(node, self.client.generate(node, request, placed))

    def go_on(self, news: tuple[Node, News] | None) -> None:
        """Open decode's leg if it is time; raises NodeFailed where all has ended too early."""
        relay = self.relay
        if ticket := relay.ticket(news):
            self.begin(ticket)
        elif relay.ends_without_ticket(news):
            self.run_whole()
        elif news is None and not relay.held:
            raise NodeFailed(relay.plan.decode.node_id, "ended too early")

    def begin(self, ticket: KvTicket) -> None:
        """There is a ticket: ask decode to fetch its KV."""
        self._since = self.clock()
        self._open(self.relay.plan.decode, ticket)

    def run_whole(self) -> None:
        """There will be no ticket: ask decode to run the prompt."""
        decode = self.relay.plan.decode
        self.relay.begin(decode, WHOLE)
        self.call(decode, self.request, WHOLE)

    async def mend(self) -> NodeFailed | None:
        """Replace a decode leg that was missed; raises its failure where nobody is left.
        Close a prefill leg that has nothing to wait for.

        Answers with the failure of a node that was replaced because it broke off.
        """
        relay = self.relay
        if relay.ignored:
            note_failure(self.health, relay.ignored, begun=self.begun, now=self.clock())
            relay.ignored = None
        if relay.lingers and relay.plan.prefill:
            relay.parted = True
            await self.legs.close(relay.plan.prefill)
            self.timeline.record_close(relay.plan.prefill, self.clock())
        if (failure := relay.missed) is None:
            return None
        assert relay.leg is not None
        assert relay.leg.ticket is not None
        (self._tried if failure.no_room else self._failed).add(failure.node_id)
        self.health.end(relay.plan, begun=self.begun)
        await self.legs.close(relay.plan.decode)
        if (decode := self._another()) is None:
            raise failure
        self._open(decode, relay.leg.ticket)
        return None if failure.no_room else failure

    def _open(self, decode: Node, ticket: KvTicket) -> None:
        leg = Leg(ticket=ticket)
        if self._kept(decode):
            elsewhere = any(one.node_id != decode.node_id for one in self._untried())
            elsewhere = elsewhere and decode.node_id not in self._tried
            waited_s = self.clock() - (self._since or self.clock())
            leg = Leg(ticket=ticket, keep_open=True, elsewhere=elsewhere, waited_s=waited_s)
        self.relay.begin(decode, leg)
        self.call(decode, unscored(self.request), leg)

    def _kept(self, decode: Node) -> bool:
        """Whether the prefill leg keeps the KV for us, whatever becomes of decode's."""
        prefill = self.relay.plan.prefill
        return prefill is not None and prefill.ours and decode.ours

    def _another(self) -> Node | None:
        """One that was not asked yet and has nobody waiting, or as near to that as there is."""
        untried = self._untried()
        roomy = [node for node in untried if not node.load.waiting]
        nodes = roomy or untried or self._partners()
        if not nodes:
            return None
        prefill = self.relay.plan.prefill
        decode = self.planner.choose(nodes, self.flight.ask, prefill)
        self.flight.move(decode, self.clock())
        self.health.begin(Plan(prefill, decode), now=self.begun)  # half open, it has one call
        return decode

    def _untried(self) -> Sequence[Node]:
        return [node for node in self._partners() if node.node_id not in self._tried]

    def _partners(self) -> Sequence[Node]:
        """The decode nodes that may fetch this KV."""
        assert self.relay.plan.prefill
        now = self.clock()
        partners = self.registry.partners(self.relay.plan.prefill, now=now)
        untold = [one for one in partners if one.ours and one.node_id not in self._failed]
        return self.health.well(untold, now=now)
