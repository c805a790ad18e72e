"""Fails health checks as soon as the proxy stops, so that load balancers look elsewhere."""

from dataclasses import dataclass
from typing import Any

import msgspec

HEALTH_PATHS = ("/health", "/readiness")
BODY = msgspec.json.encode({"status": "stopping"})
HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY)).encode()),
    (b"connection", b"close"),
]


@dataclass(slots=True)
class StoppingHealth:
    """ASGI middleware that answers health checks with 503 once `stopping` is set.

    Running requests, and other new ones, are served to their end.
    """

    app: Any
    stopping: bool = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """Answer one request, or pass it on."""
        if self.stopping and scope["type"] == "http" and scope["path"] in HEALTH_PATHS:
            start = {"type": "http.response.start", "status": 503, "headers": HEADERS}
            await send(start)
            await send({"type": "http.response.body", "body": BODY})
            return
        await self.app(scope, receive, send)
