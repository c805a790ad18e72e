"""A proxy that is told to stop says so to load balancers before all else."""

from dataclasses import dataclass
from typing import Any

import msgspec

ASKED = ("/health", "/readiness")
BODY = msgspec.json.encode({"status": "stopping"})
HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY)).encode()),
    (b"connection", b"close"),
]


@dataclass(slots=True)
class Leaving:
    """An ASGI app around another one, which answers all else as before.

    A load balancer that sees it sends new requests elsewhere; those that run come to their end.
    """

    app: Any
    begun: bool = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401
        """One request, or the lifespan."""
        if self.begun and scope["type"] == "http" and scope["path"] in ASKED:
            start = {"type": "http.response.start", "status": 503, "headers": HEADERS}
            await send(start)
            await send({"type": "http.response.body", "body": BODY})
            return
        await self.app(scope, receive, send)
