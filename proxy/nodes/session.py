"""The aiohttp session for calls that are not legs: probes, names, orders."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from api.wire import UNREADABLE
from proxy.nodes.connection_pool import KEEPALIVE_S, NO_HEADERS
from proxy.nodes.failures import UNAUTHORIZED, signature_refusal

PATIENCE_S = 2.0
LONGEST_ANSWER = 1 << 20
OK = 200


async def read_all(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole body, however many pieces it comes in; raises ClientError beyond `most`."""
    data = bytearray()
    async for part in answer.content.iter_any():
        data += part
        if len(data) > most:
            raise aiohttp.ClientPayloadError(f"more than {most} bytes")
    return bytes(data)


class SignatureRejected(Exception):
    """A pdserve node rejects the proxy's signature: its cluster key or its clock differs."""


async def get_json(
    session: aiohttp.ClientSession,
    address: str,
    path: str,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Any | None:  # noqa: ANN401
    """GET a page of a node as JSON; None: no answer in time, an error, or no JSON.

    Raises SignatureRejected.
    """
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    url = f"http://{address}{path}"
    try:
        async with session.get(
            url, headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            data = await read_all(answer, LONGEST_ANSWER)
            if answer.status in UNAUTHORIZED and (why := signature_refusal(data)):
                raise SignatureRejected(f"does not let us in: {why}")
            return msgspec.json.decode(data) if answer.status == OK else None
    except (aiohttp.ClientError, OSError, TimeoutError, *UNREADABLE):
        return None


def bearer_header(key: str | None) -> Mapping[str, str]:
    """The Authorization header of this key, if there is one."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def open_session(foreign_key: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """A session without limits of its own; each call has its timeout.

    A key for vLLM nodes is sent to all nodes: which kind a node is may not be known yet.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    async with aiohttp.ClientSession(
        connector=connector,
        headers={"Accept-Encoding": "identity", **bearer_header(foreign_key)},
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(),
        auto_decompress=False,
    ) as session:
        yield session
