"""The two routes of the OpenAPI document."""

from functools import cache

import msgspec
from quart import Blueprint, Quart, Response

from api.version import own_version
from proxy.openapi.document import document
from proxy.openapi.page import PAGE


def describing_routes(app: Quart) -> Blueprint:
    """The routes that describe all the app's routes; the document is built on first use."""
    routes = Blueprint("openapi", __name__)

    @cache
    def told() -> bytes:
        return msgspec.json.encode(document(app, own_version()))

    @routes.get("/openapi.json")
    async def tell() -> Response:
        return Response(told(), mimetype="application/json")

    @routes.get("/docs")
    async def show() -> Response:
        return Response(PAGE, mimetype="text/html")

    return routes
