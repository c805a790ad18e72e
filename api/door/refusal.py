"""A refusal as the bytes of a response, for when no application is to be asked."""

from collections.abc import Sequence

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from api.errors import error_body
from api.refusals import error_response

Pair = tuple[bytes, bytes]


def refusal(path: str, status: int, message: str, beside: Sequence[Pair]) -> bytes:
    """The whole response, with the headers `beside` its own; the connection is then closed."""
    body = msgspec.json.encode(error_response(path, status, error_body(status, message), None))
    later = b"retry-after: 1\r\n" if status == 503 else b""
    length = str(len(body)).encode()
    return b"".join(
        (
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\n",
            later,
            *(b"%b: %b\r\n" % pair for pair in beside),
            b"content-length: " + length + b"\r\n\r\n" + body,
        )
    )
