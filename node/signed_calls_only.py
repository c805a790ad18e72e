"""Refuses HTTP calls that are not signed with the cluster key, before their body is read.

Every path needs a signature, except /health and /metrics.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client import Counter

from api.errors import ErrorBody, error_body
from discovery.errors import BadSignature
from discovery.signature import UNSIGNED
from discovery.signed_calls import REFUSED, SIGNATURE, CallKey
from kv_transfer.side_channel.log_throttle import LogThrottle

UNAUTHORIZED, FORBIDDEN = 401, 403
READS = {"GET", "HEAD"}
OPEN = {"/health", "/metrics"}  # for load balancers and Prometheus, which do not know the key
HEADER = SIGNATURE.lower().encode()
MOST_SENDERS = 1024

Asgi = Callable[[Any, Any, Any], Awaitable[None]]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class SignedCallsOnly:
    """ASGI middleware around the node's routes; logs refused calls by sender, at intervals."""

    inner: Asgi
    key: CallKey
    refused: Counter
    wall_clock: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    _senders: dict[str, LogThrottle] = field(default_factory=dict)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """See ASGI. Anything but HTTP raises an error: it would need its own check."""
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} at a node's door")
        if not _is_open(scope):
            try:
                self._check(scope)
            except BadSignature as error:
                self._log_refusal(scope, error)
                await _refuse(send, error)
                return
        await self.inner(scope, receive, send)

    def _check(self, scope: Any) -> None:  # noqa: ANN401
        header = next((value for name, value in scope["headers"] if name == HEADER), None)
        signature = None if header is None else header.decode("latin-1")
        target = scope["raw_path"].decode("latin-1")
        if query := scope["query_string"]:
            target += "?" + query.decode("latin-1")
        self.key.check(signature, scope["method"], target, wall_time=self.wall_clock())

    def _log_refusal(self, scope: Any, error: BadSignature) -> None:  # noqa: ANN401
        self.refused.labels(error.reason).inc()
        sender = scope["client"][0] if scope.get("client") else "somebody"
        junk = self._senders.pop(sender, None) or LogThrottle()
        self._senders[sender] = junk  # most recently seen last
        while len(self._senders) > MOST_SENDERS:
            del self._senders[next(iter(self._senders))]
        if count := junk.count_one(self.clock()):
            what = f"{scope['method']} {scope['path']!r:.200}"
            log.warning("refused %d calls of %s, such as %s: %s", count, sender, what, error)


def _is_open(scope: Any) -> bool:  # noqa: ANN401
    return scope["path"] in OPEN and scope["method"] in READS


async def _refuse(send: Any, error: BadSignature) -> None:  # noqa: ANN401
    status = UNAUTHORIZED if error.reason == UNSIGNED else FORBIDDEN
    body = msgspec.json.encode(refusal(status, error))
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def refusal(status: int, error: BadSignature) -> ErrorBody:
    """OpenAI's error body; its code tells a proxy that the node refused the signature."""
    return error_body(status, str(error), code=REFUSED)
