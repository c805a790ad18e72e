"""GET /kv_event_sources: where this node publishes its cache events, as vLLM's."""

from collections.abc import Mapping

from quart import Blueprint, Response, jsonify


def event_sources_route(sources: Mapping[str, Mapping[str, object]]) -> Blueprint:
    """A blueprint that tells `sources`; they are empty if nothing is published."""
    routes = Blueprint("kv_events", __name__)

    async def event_sources() -> Response:
        return jsonify(sources)

    routes.get("/kv_event_sources")(event_sources)
    return routes
