"""Pages of other origins: what a browser wants to hear before it lets them ask, and read.

https://fetch.spec.whatwg.org/#http-cors-protocol. Keys come in headers and never as cookies, so
nothing is said of credentials.
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
UNSAID = {"http": 80, "https": 443}
LARGEST_WISH = 4096  # bytes, of names of headers
ALLOWED, BY_ORIGIN = b"access-control-allow-origin", (b"vary", b"Origin")
RATES = [
    f"x-ratelimit-{what}-{of}"
    for what in ("limit", "remaining", "reset")
    for of in ("requests", "tokens")
]
SHOWN = ", ".join(("x-request-id", "request-id", "retry-after", "server-timing", *RATES))
READABLE = b"access-control-expose-headers", SHOWN.encode()
PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE"),
    (b"access-control-max-age", b"7200"),  # seconds; Chromium believes no more
]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Message = Mapping[str, Any]
Pair = tuple[bytes, bytes]


def as_sent(origin: str) -> str:
    """The way browsers write it: in lower case, without its scheme's own port.

    Raises ValueError for what can be none.
    """
    if origin == ANY:
        return ANY
    found = ORIGIN.fullmatch(origin.lower())
    if found is None or int(found["port"] or 0) > HIGHEST_PORT:
        wanted = f"scheme://host or scheme://host:port, nothing behind it, or {ANY} for all"
        raise ValueError(f"--allowed-origins {origin!r} is no origin, which is {wanted}")
    scheme, host, port = found["scheme"], found["host"], found["port"]
    unsaid = port is None or int(port) == UNSAID.get(scheme)
    return f"{scheme}://{host}" if unsaid else f"{scheme}://{host}:{int(port)}"


@dataclass(frozen=True, slots=True)
class Origins:
    """Whose pages may ask at the paths that are `open_to` them. Pure."""

    allowed: frozenset[bytes]
    open_to: Callable[[str], bool]

    @classmethod
    def of(cls, said: Sequence[str], open_to: Callable[[str], bool]) -> Self:
        """Of settings; raises ValueError."""
        return cls(frozenset(as_sent(one).encode() for one in said), open_to)

    def headers(self, path: str, asked: Sequence[Pair]) -> list[Pair]:
        """Those that an answer has beside its own; none where no page asks, or one that may
        not. `asked` are the request's.
        """
        origin = _first(asked, b"origin")
        if origin is None or not self.open_to(path):
            return []
        if ANY.encode() in self.allowed:
            return [(ALLOWED, ANY.encode()), READABLE]
        return [(ALLOWED, origin), BY_ORIGIN, READABLE] if origin in self.allowed else []


@dataclass(frozen=True, slots=True)
class OriginDoor:
    """An ASGI application around another one, which need not know of origins.

    A browser's question ahead of a request ends here: it has no key, and is no work.
    """

    app: Asgi
    origins: Origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
        """One request, or the lifespan."""
        http = scope["type"] == "http"
        more = self.origins.headers(scope["path"], scope["headers"]) if http else []
        if more and _is_preflight(scope):
            told = [*more, *PREFLIGHT, *_granted(scope["headers"])]
            await send({"type": "http.response.start", "status": 204, "headers": told})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, _beginning_with(more, send) if more else send)


def opened(app: Asgi, origins: Origins) -> Asgi:
    """With such a door where there is anybody to come by it."""
    return OriginDoor(app, origins) if origins.allowed else app


def _beginning_with(
    more: Sequence[Pair], send: Callable[[Message], Awaitable[None]]
) -> Callable[[Message], Awaitable[None]]:
    """No coroutine of its own: most of what is sent are tokens, which pass."""

    def begin(message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        return send(message)

    return begin


def _is_preflight(scope: Mapping[str, Any]) -> bool:
    wanted = _first(scope["headers"], b"access-control-request-method")
    return scope["method"] == "OPTIONS" and wanted is not None


def _granted(asked: Sequence[Pair]) -> list[Pair]:
    """Any headers: a star would leave out Authorization."""
    names = _first(asked, b"access-control-request-headers")
    if not names or len(names) > LARGEST_WISH:
        return []
    return [(b"access-control-allow-headers", names)]


def _first(pairs: Sequence[Pair], wanted: bytes) -> bytes | None:
    return next((value for name, value in pairs if name == wanted), None)
