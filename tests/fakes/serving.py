"""A Quart app on a port of its own, as long as a test needs it."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from quart import Quart

HERE = "127.0.0.1"


class _Server(uvicorn.Server):
    """Leaves signals to the test, and stops without looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self.stop.wait()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # type: ignore[union-attr]
        await asyncio.sleep(0)  # those that were idle are gone now

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: Quart) -> AsyncGenerator[str]:
    """Its address; leaving stops it, and cuts what still runs."""
    door = socket.create_server((HERE, 0))
    config = uvicorn.Config(
        app, ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[door]))
    try:
        yield "{}:{}".format(*door.getsockname())
    finally:
        server.stop.set()
        await task
        door.close()
