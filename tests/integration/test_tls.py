"""The beginning and the end of TLS at a door, before and after it knows of a client."""

import asyncio
import math
import socket
import ssl
from pathlib import Path

import trustme
import uvicorn
from quart import Quart

from api.door.limiter import HOSTS_S, ConnectionLimiter, DoorLimits
from api.door.protocol import LimitedProtocol, limited_protocol
from discovery.address import parse_address
from proxy.serving.listening import listen
from tests.fakes.serving import HERE, serving
from tests.fakes.waiting import comes_true

PATIENCE_S = 30.0  # less than the minute that a handshake may take by itself


def certificate(authority: trustme.CA, folder: Path) -> str:
    path = str(folder / "door.pem")
    authority.issue_cert(HERE).private_key_and_cert_chain_pem.write_to_path(path)
    return path


async def test_a_look_before_the_door_hears_that_tls_has_ended_harms_nobody(
    tmp_path: Path,
) -> None:
    """The socket is gone one turn of the loop earlier."""
    authority = trustme.CA()
    path = certificate(authority, tmp_path)
    authority.configure_trust(trusted := ssl.create_default_context())
    limiter, now = ConnectionLimiter(DoorLimits(head_s=math.inf)), 0.0
    without_socket = 0
    async with serving(Quart("door"), limiter, certificate=path) as address:
        _, client = await asyncio.open_connection(*parse_address(address), ssl=trusted)
        await comes_true(lambda: limiter.connections)
        [door] = limiter.connections
        assert isinstance(door, LimitedProtocol)
        client.close()
        async with asyncio.timeout(PATIENCE_S):
            while limiter.connections:
                without_socket += door.transport.get_extra_info("socket") is None
                now += HOSTS_S
                limiter.sweep(now)
                await asyncio.sleep(0)
        await client.wait_closed()
    assert without_socket, "each look came before the socket had gone, or after the end"


async def test_a_client_that_does_not_begin_tls_is_hung_up_on(tmp_path: Path) -> None:
    path, http = certificate(trustme.CA(), tmp_path), limited_protocol(ConnectionLimiter())
    config = uvicorn.Config(
        Quart("door"), http=http, lifespan="off", log_config=None, ssl_certfile=path
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server((HERE, 0)) as door:
        await server.startup([])
        await listen(server, [door], handshake_s=0.01)
        reader, client = await asyncio.open_connection(*door.getsockname())
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        client.close()
        for one in server.servers:
            one.close()
