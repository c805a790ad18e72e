"""Responses to HTTP/1.0, which knows no chunks: a body ends with its connection."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

OLD = "1.0"


def send_unchunked(cycle: RequestResponseCycle) -> None:
    """Let uvicorn write the body as it is, whether or not it has a length.

    To be called before the application runs. Uvicorn closes the connection at the end.
    """
    send = cycle.send

    async def unchunked(message: Any) -> None:  # noqa: ANN401  one of ASGI's
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.chunked_encoding = False
    cycle.send = unchunked  # type: ignore[method-assign]
