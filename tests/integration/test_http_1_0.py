"""Clients that speak HTTP/1.0, which knows no chunks and ends with the connection."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from quart import Quart, Response

from api.door.protocol import LimitedProtocol
from proxy.serving.corked import CorkedProtocol
from tests.fakes.hostile_http import connect
from tests.fakes.serving import serving

PATIENCE_S = 60
PIECES = (b"data: a\n\n", b"data: b\n\n", b"data: [DONE]\n\n")
STREAM = b"".join(PIECES)


def app() -> Quart:
    one = Quart("old")

    async def pieces() -> AsyncGenerator[bytes]:
        for piece in PIECES:
            yield piece
            await asyncio.sleep(0)

    @one.get("/stream")
    async def stream() -> Response:
        return Response(pieces())

    @one.get("/whole")
    async def whole() -> bytes:
        return b"all of it"

    return one


@pytest.mark.parametrize("kind", [LimitedProtocol, CorkedProtocol])
@pytest.mark.parametrize(
    ("asked", "length", "body"),
    [
        (b"GET /stream", None, STREAM),
        (b"HEAD /stream", None, b""),
        (b"GET /whole", b"9", b"all of it"),
        (b"HEAD /whole", b"9", b""),
    ],
)
async def test_a_body_is_sent_as_it_is_and_ends_with_the_connection(
    kind: type[LimitedProtocol], asked: bytes, length: bytes | None, body: bytes
) -> None:
    async with asyncio.timeout(PATIENCE_S), serving(app(), kind=kind) as address:
        client = await connect(address)
        await client.send(asked + b" HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head, _, said = (await client.rest()).partition(b"\r\n\r\n")
        client.close()
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"connection: close" in lines
    assert b"transfer-encoding" not in head
    assert [line[16:] for line in lines if line.startswith(b"content-length: ")] == (
        [length] if length else []
    )
    assert said == body


async def test_later_versions_get_chunks() -> None:
    async with asyncio.timeout(PATIENCE_S), serving(app()) as address:
        client = await connect(address)
        await client.send(b"GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        said = await client.rest()
        client.close()
    assert b"transfer-encoding: chunked\r\n" in said
    assert said.endswith(b"0\r\n\r\n")
