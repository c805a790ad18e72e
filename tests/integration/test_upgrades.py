"""Clients that would rather speak another protocol: Java's and curl's HTTP/2 ask so by default.

Their requests are answered as all others are, with their bodies and with what comes behind.
"""

import asyncio
import re

import pytest
from quart import Quart, request

from api.door.protocol import LimitedProtocol
from proxy.serving.corked import CorkedProtocol
from tests.fakes.hostile_http import connect
from tests.fakes.serving import serving

PATIENCE_S = 60
BODY = b'{"prompt": "hi"}'
UPGRADE = (
    b"Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
)
SIZED = b"POST /echo HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (UPGRADE, len(BODY))
CHUNKED = b"POST /echo HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % UPGRADE
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
EMPTY = b"POST /echo HTTP/1.1\r\n%bContent-Length: 0\r\n\r\n" % UPGRADE
GET = b"GET /path HTTP/1.1\r\n%b\r\n" % UPGRADE
LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def app() -> Quart:
    one = Quart("upgraded")

    @one.post("/echo")
    async def echo() -> bytes:
        body = await request.get_data(as_text=False)
        assert isinstance(body, bytes)
        return b"<%b>" % body

    @one.get("/<name>")
    async def path(name: str) -> bytes:
        return b"<%b>" % name.encode()

    return one


@pytest.mark.parametrize("kind", [LimitedProtocol, CorkedProtocol])
@pytest.mark.parametrize(
    ("pieces", "answers"),
    [
        ([SIZED + BODY], [BODY]),
        ([SIZED, BODY], [BODY]),
        ([SIZED + BODY[:5], BODY[5:]], [BODY]),
        ([CHUNKED + CHUNKS], [BODY]),
        ([CHUNKED, CHUNKS], [BODY]),
        ([EMPTY], [b""]),
        ([GET], [b"path"]),
        ([GET + SIZED + BODY + EMPTY + SIZED, BODY], [b"path", BODY, b"", BODY]),
    ],
)
async def test_a_request_to_upgrade_is_answered_like_any_other(
    kind: type[LimitedProtocol], pieces: list[bytes], answers: list[bytes]
) -> None:
    async with asyncio.timeout(PATIENCE_S), serving(app(), kind=kind) as address:
        client = await connect(address)
        for piece in pieces[:-1]:
            await client.send(piece)
        await client.send(pieces[-1] + LAST)
        said = await client.rest()
        client.close()
    assert re.findall(rb"<(.*?)>", said) == [*answers, b"last"]
    assert said.count(b"HTTP/1.1 200 OK") == len(answers) + 1
