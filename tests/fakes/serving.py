"""An app on a port of its own, as long as a test needs it."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from api.door.limiter import ConnectionLimiter
from api.door.protocol import ExtraHeaders, LimitedProtocol, limited_protocol
from node.signed_calls_only import Asgi

HERE = "127.0.0.1"


class _Server(uvicorn.Server):
    """Leaves signals to the test, and stops without ever sleeping."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self.stop.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for task in self.server_state.tasks:
            task.cancel()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self.lifespan.shutdown()
        assert sockets


@asynccontextmanager
async def serving(
    app: Asgi,
    limiter: ConnectionLimiter | None = None,
    kind: type[LimitedProtocol] = LimitedProtocol,
    beside: ExtraHeaders | None = None,
    certificate: str | None = None,
) -> AsyncGenerator[str]:
    """Its address; leaving stops it, and cuts what still runs. With a certificate by TLS."""
    door = socket.create_server((HERE, 0))
    http = limited_protocol(limiter or ConnectionLimiter(), kind, beside)
    settings: dict[str, Any] = {"ws": "none", "log_config": None, "access_log": False}
    config = uvicorn.Config(app, http=http, ssl_certfile=certificate, **settings)
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[door]))
    try:
        yield "{}:{}".format(*door.getsockname())
    finally:
        server.stop.set()
        await task
        door.close()
