"""Requests that ask for another protocol (`Upgrade`), which is never spoken here.

The parser takes such a request for one without a body, and stops behind its head. It is then
told once more how long the body is, and goes on.
"""

from collections.abc import Sequence

NO_LENGTH = b"0"
FRAMING = (b"content-length", b"transfer-encoding")


def body_framing(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A head that only announces the body that these headers do; empty if there is none."""
    lines = [
        b"%b: %b\r\n" % (name, value)
        for name, value in headers
        if name in FRAMING and value.strip(NO_LENGTH)
    ]
    return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(lines) if lines else b""
