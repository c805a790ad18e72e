"""The loop of a node's engine process: prefill, decode and pooling over one engine.

One `prepare` and one `run` are a step. Pure: engine_process.py has the sockets. The ways of a
leg, from `submit` on:

    any          waits for its grammar, if it has one, and is submitted again
    prefill      waits for KV of an earlier turn, if it is worth it ──▶ PrefillWorker
    with ticket  DecodeWorker: waits for room, then for its KV
    whole        DecodeWorker: runs from its prompt on
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from api.generator import Event, Leg, PooledEvent
from decode_node.worker import DecodeWorker
from engine.api import Engine, EngineLoad
from engine.cache_events import CacheEvent
from engine.request import PoolingRequest, Request, RequestId
from kv_transfer.ticket import KvTicket
from prefill_node.pooling import PoolingWorker
from prefill_node.worker import PrefillWorker

LegEvent = tuple[RequestId, Event | PooledEvent]


@dataclass(frozen=True, slots=True)
class _WaitingLeg:
    """A leg that cannot be scheduled yet: its grammar is being compiled, or KV of its prompt is
    being fetched from another node. Other legs do not wait for it.
    """

    request: Request
    leg: Leg
    since: float

    def fetches(self, ticket: KvTicket | None) -> bool:
        """Whether this leg will fetch the KV of the ticket."""
        leg = self.leg
        if ticket is None or leg.ticket is None or leg.hold or leg.recompute:
            return False
        return leg.ticket.ticket_id == ticket.ticket_id


@dataclass(slots=True)
class NodeLoop:
    """Call `prepare` and `run` in turn; send the events of `prepare` before `run`.

    `idle` after a `run` means that there was nothing to compute: wait for a message of the door
    or a transfer, but only briefly while `has_waiting_legs`. `cache_events` are those of the
    last `run`.
    """

    engine: Engine
    prefill: PrefillWorker
    decode: DecodeWorker
    idle: bool = True
    cache_events: Sequence[CacheEvent] = ()
    pooling: PoolingWorker = field(init=False)
    _waiting: list["_WaitingLeg"] = field(default_factory=list)
    _fetching: dict[RequestId, "_WaitingLeg"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Pooling needs no KV transfer."""
        self.pooling = PoolingWorker(self.engine, self.prefill.clock)

    @property
    def load(self) -> EngineLoad:
        """The engine's load, including legs that have not been passed to it yet."""
        load, waiting = self.engine.load, self.decode.num_waiting
        return replace(
            load,
            waiting=load.waiting + waiting + len(self._waiting) + len(self._fetching),
            running=load.running + self.decode.num_pulling,
        )

    @property
    def load_failures(self) -> Mapping[str, int]:
        """How many KV loads failed since the start, by kind."""
        return self.decode.load_failures

    @property
    def has_waiting_legs(self) -> bool:
        """Whether a leg waits for its grammar, or for KV from another node or a disk tier.

        If so, call `prepare` again soon.
        """
        return bool(self._waiting or self._fetching) or self.engine.load.fetching > 0

    def submit(self, request: Request, leg: Leg, since: float) -> Sequence[LegEvent]:
        """Queue one leg that came at `since`; request ids are never used twice on this node."""
        if not self.engine.ready(request):
            self._waiting.append(_WaitingLeg(request, leg, since))
            return []
        if leg.hold:
            if leg.cache is not None and self.decode.fetcher.start(request, leg.cache):
                self._fetching[request.request_id] = _WaitingLeg(request, leg, since)
                return []
            self.decode.decline(leg)
            return self.prefill.submit(request, leg.outer_id, since)
        return self.decode.submit(request, leg, since)

    def pool(self, request: PoolingRequest, since: float) -> Sequence[LegEvent]:
        """Queue one prompt to be pooled; see `submit`."""
        return self.pooling.submit(request, since)

    def decline(self, leg: Leg) -> None:
        """This leg will not fetch its KV, which is given up unless another leg will."""
        if not any(one.fetches(leg.ticket) for one in self._waiting):
            self.decode.decline(leg)

    def abort(self, request_id: RequestId) -> None:
        """Stop a leg in any state; does nothing for one that has ended."""
        gone = [one for one in self._waiting if one.request.request_id == request_id]
        self._waiting = [one for one in self._waiting if one.request.request_id != request_id]
        for one in gone:
            self.decline(one.leg)
        if self._fetching.pop(request_id, None):
            self.decode.fetcher.abort(request_id)
        self.prefill.abort(request_id)
        self.decode.abort(request_id)
        self.pooling.abort(request_id)

    def prepare(self) -> Sequence[LegEvent]:
        """Collect finished transfers, and schedule the next batch."""
        waiting, self._waiting = self._waiting, []
        events = [
            event for one in waiting for event in self.submit(one.request, one.leg, one.since)
        ]
        events += [*self.prefill.collect(), *self.decode.collect(), *self._end_fetches()]
        admitted = self.engine.schedule()
        for worker in (self.prefill, self.decode, self.pooling):
            events += worker.admit(admitted)
        return events

    def _end_fetches(self) -> Iterator[LegEvent]:
        for fetched in self.decode.fetcher.collect():
            one = self._fetching.pop(RequestId(fetched.request_id))
            yield from self.prefill.submit(one.request, one.leg.outer_id, one.since, fetched)

    def run(self) -> Sequence[LegEvent]:
        """Run the batch; returns the events of its tokens."""
        began = self.prefill.clock()
        result = self.engine.step()
        self.decode.fetcher.record_pace(result.num_tokens, self.prefill.clock() - began)
        self.idle, self.cache_events = result.num_tokens == 0, result.cache_events
        workers = self.prefill, self.decode, self.pooling
        return [event for worker in workers for event in worker.book(result)]
