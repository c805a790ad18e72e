"""A decode node on one engine, whose KV comes from a source on another."""

from api.generator import Event, FailedEvent, Leg, PooledEvent, StageEvent
from engine.request import Request, RequestId, first_token_digest, tokens_digest
from kv_transfer.api import Outcome, Sealed
from kv_transfer.local.connector import LocalSink, LocalSource
from kv_transfer.ticket import KvTicket
from tests.fakes.engine import FakeEngine
from tests.fakes.node import node_loop

rid = RequestId("r")
HERE = ("h", 1)


class Pair:
    """A source on one engine, a node on another."""

    def __init__(self, *, recompute: bool = True, **limits: int) -> None:
        theirs, self.engine = FakeEngine(), FakeEngine(**{"blocks": 8, **limits})
        self.source = LocalSource("e", HERE, theirs.kv_regions, "fake", self.clock)
        regions = self.engine.kv_regions
        self.sink = LocalSink({HERE: self.source}, regions, "fake", self.clock)
        ours = LocalSource("d", ("d", 1), regions, "fake", self.clock)
        loop = node_loop(self.engine, ours, self.sink, self.clock, recompute=recompute)
        self.node = loop
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def submit(self, request: Request, ticket: KvTicket, *, keep_open: bool = False) -> None:
        self.node.submit(request, Leg(ticket=ticket, keep_open=keep_open), self.now)

    def tick(self, times: int = 1) -> list[tuple[RequestId, Event]]:
        news = list[tuple[RequestId, Event | PooledEvent]]()
        for _ in range(times):
            news += [*self.node.prepare(), *self.node.run()]
        beside = StageEvent | PooledEvent
        return [(name, event) for name, event in news if not isinstance(event, beside)]

    def seal(self, ticket: KvTicket, asked: Request) -> None:
        """Offer one block with the KV of all its tokens."""
        self.source.extend(ticket.ticket_id, [0])
        self.source.seal(ticket.ticket_id, sealed_for(asked))

    def wait(self, seconds: int) -> None:
        """A held job looks at its ticket all the while, so that nothing ends."""
        for _ in range(seconds):
            self.now += 1.0
            self.tick()
            assert self.outcomes() == []

    def outcomes(self) -> list[Outcome]:
        return [settled.outcome for settled in self.source.poll()]

    @property
    def used_blocks(self) -> int:
        return self.engine.load.total_blocks - self.engine.load.free_blocks


def sealed_for(request: Request, first_token: int = 0) -> Sealed:
    length = len(request.tokens)
    digests = tokens_digest(request), first_token_digest(request)
    return Sealed(length, first_token, *digests)


def failures(news: list[tuple[RequestId, Event]]) -> list[FailedEvent]:
    return [event for _, event in news if isinstance(event, FailedEvent)]
