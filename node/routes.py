"""A node's own HTTP routes: /inference/v1/generate, health, metrics and the registration."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast
from uuid import uuid4

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from quart import Blueprint, Response, jsonify, request

from api.errors import ModelNotFound
from api.generate import NodeCall, decode_call
from api.generated import DONE, encode_answer, encode_event, status_of
from api.generator import (
    BAD_REQUEST,
    UNAVAILABLE,
    WHOLE,
    EndEvent,
    Event,
    FailedEvent,
    NodeLeaving,
    TicketEvent,
)
from api.served import named_adapter
from api.version import own_version
from api.wire import WireError
from discovery.registration import Registration, to_map
from engine.errors import GrammarCheckBusy, GrammarRefused
from engine.grammars.checking import GrammarChecker
from engine.request import RequestId
from kv_transfer.ticket import KvTicket
from node.engine_client import EngineClient
from node.legs import LegFinder
from node.metrics import NodeMetrics

KEEPALIVE_COMMENT = b":\n\n"
SSE, JSON = "text/event-stream", "application/json"
LegEvents = AsyncGenerator[Event | None]


@dataclass(frozen=True, slots=True)
class NodeRoutes:
    """Serves legs from the engine. `legs` finds the leg of a call whose body names none.

    Grammars are checked here as well, since not every proxy checks them.
    """

    engine: EngineClient
    metrics: NodeMetrics
    registration: Callable[[], Registration]
    legs: LegFinder
    grammars: GrammarChecker

    def blueprint(self) -> Blueprint:
        """The routes as a Quart blueprint."""
        routes = Blueprint("node", __name__)
        routes.post("/inference/v1/generate")(self.generate)
        routes.get("/health")(self.health)
        routes.get("/metrics")(self.show_metrics)
        routes.get("/server_info")(self.server_info)
        routes.get("/version")(self.version)
        return routes

    async def health(self) -> tuple[Response, int]:
        """GET /health: 200 if the engine process is healthy, otherwise 503 with the reason."""
        trouble = self.engine.trouble
        return jsonify(status=trouble or "ok"), UNAVAILABLE if trouble else 200

    async def show_metrics(self) -> Response:
        """GET /metrics, in Prometheus' text format."""
        return Response(
            generate_latest(self.metrics.registry), content_type=CONTENT_TYPE_LATEST
        )

    async def server_info(self) -> Response:
        """GET /server_info: the registration, for proxies that added this node by hand."""
        return jsonify(to_map(self.registration()))

    async def version(self) -> Response:
        """GET /version, as vLLM's nodes have it; smg knows by it how to hand KV over."""
        return jsonify(version=own_version())

    async def generate(self) -> Response:
        """POST /inference/v1/generate: run one leg, streamed or not."""
        outer_id = request.headers.get("X-Request-Id") or uuid4().hex
        try:
            body = await request.get_data(as_text=False)
            call = self._with_adapter(
                decode_call(cast("bytes", body), request_id=RequestId(outer_id))
            )
            if call.leg.hold and call.leg.keep_open and not call.stream:
                raise WireError("keep_open wants a stream to keep open", "kv_transfer_params")
            if (grammar := call.request.sampling.grammar) is not None:
                await self.grammars.checked(grammar)
        except ModelNotFound as unknown:
            return _bad_call(WireError(str(unknown), unknown.param), 404, "NotFoundError")
        except GrammarRefused as refusal:
            return _bad_call(WireError(str(refusal), "structured_outputs"))
        except GrammarCheckBusy as busy:
            return _bad_call(WireError(str(busy)), UNAVAILABLE, "ServiceUnavailableError")
        except WireError as error:
            return _bad_call(error)
        leg = self.legs.of_request_id(outer_id) if call.leg == WHOLE else call.leg
        events = self.engine.events(call.request, leg)
        if call.stream:
            return await _streamed(call, events)
        return await self._whole(call, events)

    def _with_adapter(self, call: NodeCall) -> NodeCall:
        """The call, whose request has the adapter that it names; raises ModelNotFound."""
        said = self.registration()
        names = [name for name in (said.model, *said.aliases) if name is not None]
        adapter = named_adapter(call.model, names, said.adapters)
        if adapter is None:
            return call
        return replace(call, request=msgspec.structs.replace(call.request, adapter=adapter))

    async def _whole(self, call: NodeCall, events: LegEvents) -> Response:
        received = list[Event]()
        async with aclosing(events):
            async for event in events:
                if event is not None:
                    received.append(event)
        if isinstance(received[-1], FailedEvent):
            return _refusal(call.request.request_id, received[-1])
        model = call.model or self.registration().model or ""
        body = encode_answer(call.request, received, model, int(time.time()))
        return Response(body, content_type=JSON)


async def _streamed(call: NodeCall, events: LegEvents) -> Response:
    """Start the response with the first event, so that a refusal has its own HTTP status.

    A retryable failure is an event of the stream, which says which node failed.
    """
    first = await anext(events)
    if isinstance(first, FailedEvent) and not first.retryable:
        return _refusal(call.request.request_id, first)
    response = Response(_frames(call, first, events), content_type=SSE)
    response.timeout = None
    return response


async def _frames(
    call: NodeCall, first: Event | None, events: LegEvents
) -> AsyncGenerator[bytes]:
    """One SSE frame for each event; a prefill leg's token repeats the ticket."""
    ticket = first.ticket if isinstance(first, TicketEvent) else None
    event = first
    async with aclosing(events):
        yield _frame(call, first, None)
        async for event in events:
            if isinstance(event, TicketEvent):
                ticket = event.ticket
            yield _frame(call, event, ticket)
    if not isinstance(event, EndEvent | FailedEvent):
        yield DONE


def _frame(call: NodeCall, event: Event | None, ticket: KvTicket | None) -> bytes:
    if event is None:
        return KEEPALIVE_COMMENT
    return encode_event(call.request.request_id, event, ticket, compact=call.compact)


def _refusal(request_id: RequestId, failed: FailedEvent) -> Response:
    """Refuse with the body that the event would have in a stream."""
    frame = encode_event(request_id, failed).removeprefix(b"data: ").strip()
    headers = {"Retry-After": str(NodeLeaving.retry_after_s)} if failed.leaving else None
    return Response(frame, status_of(failed), headers, content_type=JSON)


def _bad_call(
    error: WireError, status: int = BAD_REQUEST, kind: str = "BadRequestError"
) -> Response:
    fields = {"message": str(error), "type": kind, "param": error.param, "code": status}
    body = msgspec.json.encode({"error": fields})
    return Response(body, status=status, content_type=JSON)
