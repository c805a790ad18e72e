"""A FakeNode behind the node's HTTP contract."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from quart import Blueprint, Quart, Response, request

from api.errors import ModelNotFound
from api.generate import NodeCall, decode_call
from api.generated import DONE, encode_event
from api.generator import (
    WHOLE,
    EndEvent,
    Event,
    FailedEvent,
    Leg,
    PooledEvent,
    StreamFailed,
    Tap,
    TicketEvent,
)
from api.routes import openai_routes
from api.served import ServedModel, named_adapter
from api.wire import WireError
from discovery.registration import Registration, to_map
from engine.api import EngineLoad
from engine.request import PoolingRequest, Request, RequestId
from kv_transfer.ticket import KvTicket
from node.identity import NodeIdentity
from node.metrics import NodeMetrics
from node.order_route import OrderRoute
from node.role_controller import RoleController
from proxy.errors import NodeFailed
from tests.fakes.node import FakeNode

PATIENCE_S = 60.0
CLUSTER_KEY = "the cluster's"


def vectors(http: "HttpNode") -> Blueprint:
    """The node's own endpoints that pool, of which the proxy asks one."""
    served = ServedModel(("fake",), None, lambda: None)
    return openai_routes(http, served, embedder=http)


@dataclass
class HttpNode:
    """`idle` while no leg is open; `seen` are headers of the latest.

    It has a duty, which changes its registration. `announce` has the proxy hear at once what
    a heartbeat would tell it within a second.
    """

    node: FakeNode
    announce: Callable[[Registration], None]
    patience_s: float = PATIENCE_S
    well: bool = True
    open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    seen: Mapping[str, str] = field(default_factory=dict)
    niceness: list[int] = field(default_factory=list)
    metrics: NodeMetrics = field(default_factory=NodeMetrics)

    def __post_init__(self) -> None:
        self.idle.set()
        self.identity = NodeIdentity(self.node.registration)
        self.duty = RoleController(
            self.identity, self, self.say, lambda role: 5, self.patience_s
        )

    @property
    def quiescent(self) -> asyncio.Event:
        return self.idle

    @property
    def load(self) -> EngineLoad:
        return self.node.engine.load

    @property
    def num_legs(self) -> int:
        return self.open

    def migrate_legs(self) -> None:
        self.node.hand_over()

    async def renice(self, niceness: int) -> None:
        self.niceness.append(niceness)

    def say(self) -> None:
        self.node.registration = self.identity.heartbeat(self.load)
        self.announce(self.node.registration)

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        async for event in self.node.generate(request, leg):
            yield event

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        self.open += 1
        self.idle.clear()
        try:
            return await self.node.embed(requests)
        except NodeFailed as failure:
            raise StreamFailed(str(failure)) from failure
        finally:
            self._close()

    def resolved(self, call: NodeCall) -> NodeCall:
        """With the adapter that it names."""
        said = self.node.registration
        names = [name for name in (said.model, *said.aliases) if name is not None]
        adapter = named_adapter(call.model, names, said.adapters)
        return replace(call, request=msgspec.structs.replace(call.request, adapter=adapter))

    async def generate(self, call: NodeCall) -> AsyncGenerator[Event]:
        self.open += 1
        self.idle.clear()
        try:
            async with aclosing(self.node.generate(call.request, call.leg)) as events:
                async for event in events:
                    yield event
        finally:
            self._close()

    def _close(self) -> None:
        self.open -= 1
        if not self.open:
            self.idle.set()


def node_app(http: HttpNode) -> Quart:
    """Refuses before the first byte where it can; breaks the connection where it dies."""
    app = Quart("node")

    @app.post("/inference/v1/generate")
    async def generate() -> Response:
        body: Any = await request.get_data(as_text=False)
        http.seen = {name.lower(): value for name, value in request.headers.items()}
        try:
            call = http.resolved(decode_call(body, request_id=RequestId("without")))
        except WireError as error:
            return _refused(400, str(error), error.param)
        except ModelNotFound as unknown:
            return _refused(404, str(unknown), unknown.param)
        events = http.generate(call)
        try:
            first = await anext(events)
        except NodeFailed as failure:
            return _refused(500, str(failure))
        if isinstance(first, FailedEvent) and not first.retryable:
            await events.aclose()
            return _refused(400, first.reason, first.param)
        frames = _frames(call, first, events)
        response = Response(frames, content_type="text/event-stream")
        response.timeout = None
        return response

    app.register_blueprint(vectors(http))
    app.register_blueprint(OrderRoute.of(http.duty, CLUSTER_KEY).blueprint())

    @app.get("/health")
    async def health() -> Response:
        return _json({}, 200 if http.well else 503)

    @app.get("/server_info")
    async def server_info() -> Response:
        return _json(to_map(http.node.registration))

    return app


async def _frames(
    call: NodeCall, first: Event, events: AsyncGenerator[Event]
) -> AsyncGenerator[bytes]:
    rid, compact = call.request.request_id, call.compact
    ticket = first.ticket if isinstance(first, TicketEvent) else None
    async with aclosing(events):
        yield encode_event(rid, first, compact=compact)
        async for event in events:
            yield encode_event(rid, event, _of(event, ticket), compact=compact)
            if isinstance(event, EndEvent):
                return
    yield DONE


def _of(event: Event, ticket: KvTicket | None) -> KvTicket | None:
    return None if isinstance(event, EndEvent) else ticket


def _refused(status: int, message: str, param: str | None = None) -> Response:
    return _json({"error": {"message": message, "param": param}}, status)


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype="application/json")
