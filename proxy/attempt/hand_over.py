"""One attempt's decode leg: opened with the prefill leg's ticket, replaced with the same one.

A decode node that is not the only choice is asked to give up after a while without room for the
KV; then the ticket goes to the next one. Each is asked that once. The last one has to wait,
with a place in its queue that counts from when the first was asked.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

from msgspec.structs import replace

from api.generator import WHOLE, Event, Leg
from discovery.node import Node
from discovery.registry import Registry
from engine.request import Request
from kv_transfer.ticket import KvTicket
from proxy.attempt.legs import LegItem, Legs, NextItem, PollableLeg
from proxy.attempt.progress import without_prompt_logprobs
from proxy.attempt.relay import Relay
from proxy.errors import NodeFailed
from proxy.health.failure_log import note_failure
from proxy.health.health import Health
from proxy.routing.in_flight import PlanInFlight
from proxy.routing.plan import Plan
from proxy.routing.planner import RoutePlanner
from proxy.timeline.choice import ChoiceTimeline


class NodeClient(Protocol):
    """The one call a proxy makes, for both legs."""

    def generate(
        self, node: Node, request: Request, leg: Leg
    ) -> AsyncGenerator[Event] | PollableLeg:
        """Call a node; raises NodeFailed while iterating, also on silence. Closing it aborts
        the leg.

        A prefill leg (`hold`) answers with a ticket, one token, and an end once its KV was
        fetched. A decode leg answers with every token that is missing: from the ticket's KV, or
        from scratch without a ticket.
        """


@dataclass(slots=True)
class HandOver:
    """Opens the decode leg when `relay` has a ticket, and replaces it when it fails."""

    client: NodeClient
    registry: Registry
    health: Health
    planner: RoutePlanner
    clock: Callable[[], float]
    flight: PlanInFlight
    relay: Relay
    legs: Legs
    timeline: ChoiceTimeline
    orphan_wait_s: float
    attempt_start: float
    _full: set[str] = field(default_factory=set)  # decode nodes that had no room
    _failed: set[str] = field(default_factory=set)
    _decode_asked_at: float | None = None  # when decode was asked first
    _outer_id: str | None = None  # of both legs, for nodes of vLLM

    @property
    def request(self) -> Request:
        """The request as this attempt continues it."""
        return self.flight.query.request

    def next(self) -> NextItem:
        """The legs' next event. After the prefill leg failed, raises that failure if decode
        sends nothing within `orphan_wait_s`.
        """
        failure = self.relay.prefill_failure
        return self._next_within_orphan_wait(failure) if failure else self.legs.next()

    async def _next_within_orphan_wait(self, failure: NodeFailed) -> LegItem | None:
        try:
            return await self.legs.next(self.orphan_wait_s)
        except TimeoutError:
            raise failure from None

    def open_leg(self, node: Node, request: Request, leg: Leg) -> None:
        """Open one leg. To nodes of vLLM both have an id of the attempt, not the client's."""
        if not node.ours:
            self._outer_id = self._outer_id or uuid4().hex
            leg = replace(leg, keep_open=False, outer_id=self._outer_id)
        traced = self.timeline.record_call(node, leg, self.clock())
        self.legs.open(node, self.client.generate(node, request, traced))

    def open_decode_if_due(self, item: LegItem | None) -> None:
        """Open the decode leg if this event requires it; None: all legs have ended.

        Raises NodeFailed if they ended too early.
        """
        relay = self.relay
        if ticket := relay.ticket_for_decode(item):
            self.open_decode(ticket)
        elif relay.prefill_gave_no_ticket(item):
            self.run_prompt_on_decode()
        elif item is None and not relay.held:
            raise NodeFailed(relay.plan.decode.node_id, "ended too early")

    def open_decode(self, ticket: KvTicket) -> None:
        """Ask the decode node to fetch the ticket's KV."""
        self._decode_asked_at = self.clock()
        self._open_decode_leg(self.relay.plan.decode, ticket)

    def run_prompt_on_decode(self) -> None:
        """There will be no ticket: ask the decode node to run the prompt."""
        decode = self.relay.plan.decode
        self.relay.decode_opened(decode, WHOLE)
        self.open_leg(decode, self.request, WHOLE)

    async def recover(self) -> NodeFailed | None:
        """Replace a decode leg that failed, and close a prefill leg that lingers.

        Returns the failure of a decode node that was replaced, unless it only had no room.
        Raises it if no other decode node is left.
        """
        relay = self.relay
        if relay.ignored_failure:
            note_failure(
                self.health,
                relay.ignored_failure,
                self.timeline.nodes,
                begun=self.attempt_start,
                now=self.clock(),
            )
            relay.ignored_failure = None
        if relay.prefill_lingers and relay.plan.prefill:
            relay.prefill_closed = True
            await self.legs.close(relay.plan.prefill)
            self.timeline.record_close(relay.plan.prefill, self.clock())
        if (failure := relay.decode_failure) is None:
            return None
        assert relay.decode_leg is not None
        assert relay.decode_leg.ticket is not None
        (self._full if failure.no_room else self._failed).add(failure.node_id)
        self.health.end_attempt(relay.plan, begun=self.attempt_start)
        await self.legs.close(relay.plan.decode)
        if (decode := self._choose_replacement()) is None:
            raise failure
        self._open_decode_leg(decode, relay.decode_leg.ticket)
        return None if failure.no_room else failure

    def _open_decode_leg(self, decode: Node, ticket: KvTicket) -> None:
        leg = Leg(ticket=ticket)
        if self._prefill_keeps_kv(decode):
            elsewhere = any(one.node_id != decode.node_id for one in self._not_full())
            elsewhere = elsewhere and decode.node_id not in self._full
            waited_s = self.clock() - (self._decode_asked_at or self.clock())
            leg = Leg(ticket=ticket, keep_open=True, elsewhere=elsewhere, waited_s=waited_s)
        self.relay.decode_opened(decode, leg)
        self.open_leg(decode, without_prompt_logprobs(self.request), leg)

    def _prefill_keeps_kv(self, decode: Node) -> bool:
        """Whether the prefill node keeps the KV on offer if this decode leg fails."""
        prefill = self.relay.plan.prefill
        return prefill is not None and prefill.ours and decode.ours

    def _choose_replacement(self) -> Node | None:
        """A decode node that did not report to be full, if possible one without a queue."""
        not_full = self._not_full()
        idle = [node for node in not_full if not node.load.waiting]
        nodes = idle or not_full or self._partners()
        if not nodes:
            return None
        prefill = self.relay.plan.prefill
        decode = self.planner.choose(nodes, self.flight.query, prefill)
        self.flight.replace_decode(decode, self.clock())
        self.health.begin_call(Plan(prefill, decode), now=self.attempt_start)  # a move, no try
        return decode

    def _not_full(self) -> Sequence[Node]:
        return [node for node in self._partners() if node.node_id not in self._full]

    def _partners(self) -> Sequence[Node]:
        """The decode nodes that may fetch this KV."""
        assert self.relay.plan.prefill
        now = self.clock()
        partners = self.registry.partners(self.relay.plan.prefill, now=now)
        usable = [one for one in partners if one.ours and one.node_id not in self._failed]
        return self.health.healthy(usable, now=now)
