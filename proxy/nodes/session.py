"""The session with which nodes are asked about themselves."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from proxy.nodes.lines import KEEPALIVE_S


async def read_all(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body, however many pieces it comes in; raises ClientError beyond `most`."""
    data = bytearray()
    async for part in answer.content.iter_any():
        data += part
        if len(data) > most:
            raise aiohttp.ClientPayloadError(f"more than {most} bytes")
    return bytes(data)


@asynccontextmanager
async def open_session() -> AsyncIterator[aiohttp.ClientSession]:
    """A session without limits; what it waits for is said with each call."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"Accept-Encoding": "identity"},
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
        auto_decompress=False,
    ) as session:
        yield session
