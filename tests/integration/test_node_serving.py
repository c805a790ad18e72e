"""A node's server ends with its node: nothing begins in between."""

import asyncio
import socket

import pytest
from quart import Quart

from api.door.limiter import ConnectionLimiter, DoorLimits
from node.serving import NodeServer, uvicorn_config
from tests.fakes.waiting import comes_true

ASK = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
TURNS = 100


async def test_from_a_moment_on_no_request_begins() -> None:
    """Neither on a connection that is kept nor on a new one; what runs goes on to its end."""
    app, begun, go = Quart("door"), list[str](), asyncio.Event()

    @app.get("/")
    async def answer() -> str:
        begun.append("one")
        await go.wait()
        return "well"

    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = listening.getsockname()
        server = NodeServer(uvicorn_config(app, ConnectionLimiter(DoorLimits())))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await comes_true(lambda: server.started)
        (running, run), (_, kept) = [await asyncio.open_connection(*address) for _ in range(2)]
        run.write(ASK)
        await comes_true(lambda: begun == ["one"])
        server.stop_reading()
        kept.write(ASK)
        go.set()
        assert await running.readuntil(b"well")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert begun == ["one"]
        run.close()
        kept.close()
        server.should_exit = True
        await serving
