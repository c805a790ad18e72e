"""Opens a server's sockets for clients, with a limit on the time of a TLS handshake.

uvicorn leaves it to the event loop, where a client that says nothing holds a descriptor for a
minute. The limits of api/door begin only after the handshake.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import uvicorn

HANDSHAKE_S = 10.0  # as long as the head of a request may take


async def listen(
    server: uvicorn.Server, sockets: Sequence[socket.socket], handshake_s: float = HANDSHAKE_S
) -> None:
    """Accept clients; to be called once `server` has started up without any sockets."""
    config, loop = server.config, asyncio.get_running_loop()
    protocol = partial(
        cast("Callable[..., asyncio.Protocol]", config.http_protocol_class),
        config=config,
        server_state=server.server_state,
        app_state=server.lifespan.state,
    )
    limit_s = handshake_s if config.is_ssl else None
    for one in sockets:
        listening = await loop.create_server(
            protocol,
            sock=one,
            ssl=config.ssl,
            backlog=config.backlog,
            ssl_handshake_timeout=limit_s,
        )
        server.servers.append(listening)
