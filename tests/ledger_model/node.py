"""A node of the model: the real loop, workers, scheduler and books over slow memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from api.generator import EndEvent, Event, FailedEvent, Leg, TicketEvent, TokenEvent
from engine.request import Request, RequestId, Sampling
from kv_transfer.api import Arrived, Outcome, Settled
from kv_transfer.checking import CheckLevel
from kv_transfer.identity import Identity
from kv_transfer.ledger.claims import PullClaims
from kv_transfer.ledger.known_sources import Address
from kv_transfer.thread.service import TransferService
from kv_transfer.thread.threaded import ThreadedSink, ThreadedSource
from kv_transfer.ticket import CacheHint, KvTicket
from node.identity import layout_of
from tests.fakes.engine import FakeEngine
from tests.fakes.model import TOKEN_BYTES, alone
from tests.fakes.node import node_loop
from tests.ledger_model.memory import Host, SlowMover
from tests.ledger_model.network import Network
from tests.ledger_model.shell import Shell
from tests.ledger_model.witness import WatchedSink, WatchedSource, kv_of

TOKENS, CHUNK, SEATS = 48, 6, 4  # of KV memory, of a batch, of those that run
BLOCK_SIZE, FINGERPRINT = 4, "fake"
EventNews = tuple[RequestId, Event]


@dataclass(eq=False)
class Call:
    """One leg, as the proxy sees it."""

    request: Request
    leg: Leg
    node: "Node"
    tokens: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, TokenEvent):
            self.tokens += event.tokens
            wanted = alone(self.request)[: len(self.tokens)]
            assert self.tokens == wanted, f"{self.request.request_id}: wrong tokens"


@dataclass(eq=False)
class World:
    """What nodes share: a clock, a network, and each other's memory."""

    now: float = 0.0
    network: Network = field(default_factory=Network)
    hosts: dict[bytes, Host] = field(default_factory=dict)
    delivered: set[str] = field(default_factory=set)
    starts: int = 0
    cuts: bool = True
    level: CheckLevel = CheckLevel.OFF
    block_sizes: Mapping[Address, int] = field(default_factory=dict)
    kv_by_key: dict[bytes, bytes] = field(default_factory=dict)  # of full blocks

    def learn(self, engine: FakeEngine, tokens: tuple[int, ...]) -> None:
        """What these tokens' blocks have to be, whoever has them."""
        kv, size = kv_of(tokens), engine.info.block_size * TOKEN_BYTES
        keys = engine.keys(Request(RequestId("any"), tokens, Sampling(1)))
        self.kv_by_key |= {key: kv[index * size :][:size] for index, key in enumerate(keys)}


class Node:
    """One process, from its start to its end."""

    def __init__(self, address: Address, world: World) -> None:
        self.address, self.world = address, world
        world.starts += 1
        self.name = f"{address[0]}#{world.starts}"
        size = world.block_sizes.get(address, BLOCK_SIZE)
        blocks = TOKENS // size
        self.engine = FakeEngine(blocks=blocks, block_size=size, chunk=CHUNK, seats=SEATS)
        regions = self.engine.kv_regions
        self.host = Host(self.engine.memory, regions[0])
        world.hosts[self.name.encode()] = self.host
        identity = Identity(self.name, *address, FINGERPRINT, layout_of(self.engine))
        mover = SlowMover(self.host, world.hosts, self._may_write, world.cuts)
        self.shell = Shell(
            identity, regions, mover, world.network, self.clock, self._ended, world.level
        )
        service = cast("TransferService", self.shell)
        claims = PullClaims(FINGERPRINT)
        self.source = WatchedSource(ThreadedSource(service), self.engine, world.kv_by_key)
        self.sink = WatchedSink(
            ThreadedSink(service, claims), self.engine, self._was_delivered, world.kv_by_key
        )
        self.loop = node_loop(self.engine, self.source, self.sink, self.clock, recompute=False)
        self.loop.decode.fetcher.least_tokens = 1
        self.calls: dict[RequestId, Call] = {}

    def clock(self) -> float:
        return self.world.now

    def begin(self, request: Request, leg: Leg) -> Call:
        """A new leg; its request's id is unique on this node."""
        call = self.calls[request.request_id] = Call(request, leg, self)
        self.world.learn(self.engine, (*request.tokens, *alone(request)))
        self._deliver(self.loop.submit(request, leg, self.world.now))
        return call

    @property
    def hint(self) -> CacheHint:
        """That something may be known here."""
        return CacheHint(self.name, *self.address, FINGERPRINT)

    def abort(self, call: Call) -> None:
        """The proxy has closed it."""
        if self.calls.pop(call.request.request_id, None):
            self.loop.abort(call.request.request_id)

    def compute(self) -> None:
        """One turn of the engine's loop."""
        self._deliver(self.loop.prepare())
        self._deliver(self.loop.run())

    def check(self) -> None:
        """What holds between any two events."""
        self.engine.kv.check()
        self.source.check()
        self.sink.check()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left of anything."""
        books = self.shell.offers.num_open + self.shell.pulls.num_open
        load, mover = self.engine.load, self.shell.mover
        return not books and not mover.readings and load.free_blocks == load.total_blocks

    def _deliver(self, news: object) -> None:
        for rid, event in cast("list[EventNews]", news):
            if call := self.calls.get(rid):
                call.hear(event)

    def _may_write(self, block: int) -> None:
        self.sink.may_write(block)

    def _ended(self, news: Arrived | Settled) -> None:
        if isinstance(news, Arrived):
            self.sink.ended(news)
        elif news.outcome is Outcome.DELIVERED:
            self.world.delivered.add(news.ticket_id)

    def _was_delivered(self, ticket: KvTicket) -> bool:
        return ticket.engine_id is None or ticket.ticket_id in self.world.delivered


def ticket_of(call: Call) -> KvTicket | None:
    """What a prefill leg was given."""
    given = [event.ticket for event in call.events if isinstance(event, TicketEvent)]
    return given[0] if given else None


def is_over(call: Call) -> bool:
    """Whether the leg was told its end."""
    last = call.events[-1] if call.events else None
    if isinstance(last, TokenEvent):
        return last.finish is not None and not call.leg.hold
    return isinstance(last, EndEvent | FailedEvent)
