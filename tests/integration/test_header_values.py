"""What an application reads of a header's value: white space around it is no part of it."""

import asyncio

from quart import Quart, request

from tests.fakes.hostile_http import connect
from tests.fakes.serving import serving

PATIENCE_S = 60


def app() -> Quart:
    one = Quart("headers")

    @one.get("/")
    async def value() -> str:
        return repr([request.headers.get("X-Api-Key"), request.headers.get("X-Other")])

    return one


async def test_white_space_around_a_value_is_left_out() -> None:
    async with asyncio.timeout(PATIENCE_S), serving(app()) as address:
        client = await connect(address)
        await client.send(
            b"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: \t sk a \t \r\nX-Other:   \r\n"
            b"Connection: close\r\n\r\n"
        )
        _, _, said = (await client.rest()).partition(b"\r\n\r\n")
        client.close()
    assert said == b"['sk a', '']"
