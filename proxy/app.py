"""The proxy's routes: OpenAI's over the pipeline, and a few about the cluster itself."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from quart import Quart, Response, request

from api.endpoints import REQUEST_ID, Endpoint, Headers, TextEndpoints
from api.errors import ApiError, body_of
from api.messages.errors import PATH as MESSAGES
from api.refusals import VERSION, error_response, wants_anthropic_format
from api.routes import GENERATE, http_app, openai_routes, token_routes
from api.served import Models
from proxy.admin.audit import audit_line
from proxy.admin.drain_lock import DrainLock
from proxy.admin.guard import NOBODY, Guard
from proxy.admin.node_operations import Operator
from proxy.admin.routes import AdminRoutes
from proxy.admin.status import cluster_status, health, served_models
from proxy.admission.gate import AdmissionGate, GatedEmbedder, caller
from proxy.nodes.instances import Instances
from proxy.nodes.orders import OrderSender
from proxy.observing.observed_pipeline import ObservedPipeline
from proxy.observing.rendering import timeline_json
from proxy.observing.timeline_middleware import (
    TIMING_HEADER,
    TimelineMiddleware,
    record_answer,
    timeline_comment,
)
from proxy.observing.timeline_store import TimelineStore
from proxy.openapi.routes import describing_routes
from proxy.serving.front import TextFront
from proxy.timeline.exchange import current
from proxy.workers.cluster_reports import ClusterReports

JSON = "application/json"
COUNTED = ("/v1/", "/v2/", "/inference/", "/pooling", "/score", "/classify", "/rerank")

logger = logging.getLogger("proxy.audit")


def create_app(
    door: ObservedPipeline,
    models: Models,
    instances: Instances,
    guard: Guard,
    gate: AdmissionGate,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Quart:
    """Build the app; everything it needs is passed in, and owned by the caller."""
    app = http_app("proxy")
    app.register_blueprint(
        openai_routes(door, models, embedder=GatedEmbedder(door, gate), gate=gate)
    )
    hooks = ProxyHooks(door, guard, gate, clock)
    texts = TextEndpoints(door, models, gate=gate)
    app.register_blueprint(token_routes(texts))
    paths: dict[str, Endpoint] = {
        "/v1/completions": texts.completions,
        "/v1/chat/completions": texts.chat,
        "/v1/responses": texts.responses,
        MESSAGES: texts.messages,
        GENERATE: texts.tokens,
    }
    front = TextFront(app.asgi_app, paths, hooks)
    exchanges = TimelineMiddleware(front, COUNTED, door.timelines, door.tracing, clock)
    app.asgi_app = exchanges  # type: ignore[method-assign]
    _add_hooks(app, hooks)
    reports = ClusterReports(instances.peers)
    _tell(app, hooks, models, reports)
    reports.serve_timelines(lambda name, owner: _timeline(door.timelines, name, owner))
    _tell_timelines(app, reports, guard)
    orders = OrderSender(instances.session, instances.signing, instances.cluster_key)
    shared = door.pipeline.registry, instances.peers
    drain_lock = DrainLock(*shared, clock)
    operator = Operator(shared[0], orders, shared[1], drain_lock, clock)
    app.register_blueprint(AdminRoutes(instances, operator, reports.status).blueprint())
    app.register_blueprint(describing_routes(app))
    return app


@dataclass(frozen=True, slots=True)
class ProxyHooks:
    """RequestHooks of this proxy: checks keys, counts answers, adds headers."""

    door: ObservedPipeline
    guard: Guard
    gate: AdmissionGate
    clock: Callable[[], float]

    def on_request(self, path: str, headers: Headers) -> None:
        """Check the key; raises Unauthorized or Forbidden."""
        keys = headers.get("Authorization"), headers.get("X-API-Key")
        caller.set(who := self.guard.check(path, *keys))
        if exchange := current.get():
            exchange.owner = "" if who is NOBODY else who.name

    def on_answer(self, path: str, status: int, outer_id: str | None) -> Mapping[str, str]:
        """Count the answer and return its extra headers; `path` is the endpoint's."""
        self.door.metrics.record_answer(path, status)
        return {
            **record_answer(status, outer_id or "", self.clock()),
            **self.gate.rate_limit_headers(),
        }

    def stream_comment(self, headers: Headers) -> bytes:
        """The timeline, if the client wants it."""
        return timeline_comment(headers.get(TIMING_HEADER))


def _add_hooks(app: Quart, hooks: ProxyHooks) -> None:
    """Use the same hooks for requests that the text front passes on."""

    @app.before_request
    async def on_request() -> None:
        hooks.on_request(request.path, request.headers)

    @app.after_request
    async def on_answer(response: Response) -> Response:
        if request.path.startswith(COUNTED):
            rule = request.url_rule.rule if request.url_rule else "unknown"
            outer_id = response.headers.get(REQUEST_ID)
            response.headers.update(hooks.on_answer(rule, response.status_code, outer_id))
        if hooks.guard.audits(request.path, request.headers.get("X-API-Key")):
            call = f"{request.method} {request.path}"
            answer = await response.get_data(as_text=False)
            said = call, response.status_code, answer
            logger.info("%s", audit_line(caller.get().name, request.remote_addr, *said))
        return response

    @app.errorhandler(ApiError)
    async def refused(error: ApiError) -> Response:
        return _refusal(request.path, error, request.headers.get(VERSION))


def _tell(app: Quart, hooks: ProxyHooks, models: Models, reports: ClusterReports) -> None:
    door, clock = hooks.door, hooks.clock
    registry, metrics = door.pipeline.registry, door.metrics

    def generates() -> bool:
        """Whether any of the models generates, as far as is known."""
        known = [served.pooling for served in models.listed()]
        return not known or any(one is None or one.generates for one in known)

    @app.get("/health")
    async def tell_health() -> Response:
        status, body = health(registry, now=clock(), generates=generates())
        return _json(body, status)

    def own_status() -> dict[str, Any]:
        now, in_flight = clock(), metrics.requests_in_flight
        health_of = door.pipeline.health
        said = cluster_status(
            registry, health_of, now=now, in_flight=in_flight, generates=generates()
        )
        queued = len(hooks.gate.admission.queue)
        return {
            **said,
            "requests_queued": queued,
            "models": served_models(models.listed()),
        }

    reports.serve_status(own_status, metrics.render)

    @app.get("/status")
    async def tell_status() -> Response:
        return _json(await reports.status())

    @app.get("/metrics")
    async def tell_metrics() -> Response:
        return Response(await reports.metrics(), content_type=CONTENT_TYPE_LATEST)


def _timeline(kept: TimelineStore, name: str, owner: str | None) -> dict[str, Any] | None:
    found = kept.find(name, owner)
    return timeline_json(found) if found else None


def _tell_timelines(app: Quart, reports: ClusterReports, guard: Guard) -> None:
    @app.get("/requests/<path:name>")
    async def tell_timeline(name: str) -> Response:
        headers = request.headers
        owner = guard.sees(headers.get("Authorization"), headers.get("X-API-Key"))
        if found := await reports.timeline(name, owner):
            return _json(found)
        raise UnknownRequest(f"no request {name!r} is known, or it was too long ago")


class UnknownRequest(ApiError):
    """Unknown, or somebody else's; the client is not told which."""

    status = 404


def _refusal(path: str, error: ApiError, version: str | None) -> Response:
    """The error in the client's format; in OpenAI's, with the `detail` that clients of vLLM's
    proxy read.
    """
    told = body_of(error)
    body = msgspec.to_builtins(error_response(path, error.status, told, None, version))
    beside = {} if wants_anthropic_format(path, version) else {"detail": told.error.message}
    response = _json({**beside, **body}, error.status)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype=JSON)
