"""Cross-origin resource sharing (CORS): lets browsers use the proxy from other origins.

https://fetch.spec.whatwg.org/#http-cors-protocol. Keys come in headers and never as cookies, so
no header allows credentials.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from discovery.address import HIGHEST_PORT

ANY = "*"
ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?"
)
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_REQUESTED_HEADERS_BYTES = 4096  # bytes, of names of headers
ALLOWED, BY_ORIGIN = b"access-control-allow-origin", (b"vary", b"Origin")
RATES = [
    f"x-ratelimit-{what}-{of}"
    for what in ("limit", "remaining", "reset")
    for of in ("requests", "tokens")
]
EXPOSED_HEADERS = ", ".join(
    ("x-request-id", "request-id", "retry-after", "server-timing", *RATES)
)
EXPOSE = b"access-control-expose-headers", EXPOSED_HEADERS.encode()
PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    (b"access-control-max-age", b"7200"),  # seconds; Chromium accepts no more
]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Message = Mapping[str, Any]
Pair = tuple[bytes, bytes]


def normalized_origin(origin: str) -> str:
    """The origin as browsers send it: in lower case, without the scheme's default port.

    Raises ValueError if it is not an origin.
    """
    if origin == ANY:
        return ANY
    found = ORIGIN.fullmatch(origin.lower())
    if found is None or int(found["port"] or 0) > HIGHEST_PORT:
        wanted = f"scheme://host or scheme://host:port, nothing behind it, or {ANY} for all"
        raise ValueError(f"--allowed-origins {origin!r} is no origin, which is {wanted}")
    scheme, host, port = found["scheme"], found["host"], found["port"]
    is_default = port is None or int(port) == DEFAULT_PORTS.get(scheme)
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{int(port)}"


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """Which origins may call the paths that are `open_to` other origins. Pure."""

    allowed: frozenset[bytes]
    open_to: Callable[[str], bool]

    @classmethod
    def of(cls, allowed: Sequence[str], open_to: Callable[[str], bool]) -> Self:
        """From --allowed-origins; raises ValueError."""
        return cls(frozenset(normalized_origin(one).encode() for one in allowed), open_to)

    def headers(self, path: str, request: Sequence[Pair]) -> list[Pair]:
        """The CORS headers of an answer; none without an Origin, or if it is not allowed.

        `request` are the request's headers.
        """
        origin = _first(request, b"origin")
        if origin is None or not self.open_to(path):
            return []
        if ANY.encode() in self.allowed:
            return [(ALLOWED, ANY.encode()), EXPOSE]
        return [(ALLOWED, origin), BY_ORIGIN, EXPOSE] if origin in self.allowed else []


@dataclass(frozen=True, slots=True)
class CorsMiddleware:
    """ASGI middleware that adds the headers of a CorsPolicy.

    It answers preflight requests itself, as they carry no key.
    """

    app: Asgi
    origins: CorsPolicy

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """Handle one request, or the lifespan."""
        http = scope["type"] == "http"
        more = self.origins.headers(scope["path"], scope["headers"]) if http else []
        if more and _is_preflight(scope):
            headers = [*more, *PREFLIGHT, *_allowed_headers(scope["headers"])]
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, _with_headers(more, send) if more else send)


def with_cors(app: Asgi, origins: CorsPolicy) -> Asgi:
    """Wrap the app if any origin is allowed."""
    return CorsMiddleware(app, origins) if origins.allowed else app


def _with_headers(
    more: Sequence[Pair], send: Callable[[Message], Awaitable[None]]
) -> Callable[[Message], Awaitable[None]]:
    """Add headers to the answer. Not a coroutine, since most messages are tokens."""

    def begin(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        return send(message)

    return begin


def _is_preflight(scope: Mapping[str, Any]) -> bool:
    wanted = _first(scope["headers"], b"access-control-request-method")
    return scope["method"] == "OPTIONS" and wanted is not None


def _allowed_headers(request: Sequence[Pair]) -> list[Pair]:
    """All headers that the page asks for: `*` would not include Authorization."""
    names = _first(request, b"access-control-request-headers")
    if not names or len(names) > MAX_REQUESTED_HEADERS_BYTES:
        return []
    return [(b"access-control-allow-headers", names)]


def _first(pairs: Sequence[Pair], wanted: bytes) -> bytes | None:
    return next((value for name, value in pairs if name == wanted), None)
