"""A door looks at all its connections, also at one whose TLS ends in the same moment."""

import asyncio
import math
import ssl
from pathlib import Path

import trustme
from quart import Quart

from api.door.limiter import HOSTS_S, ConnectionLimiter, DoorLimits
from discovery.address import parse_address
from tests.fakes.serving import HERE, serving
from tests.fakes.waiting import comes_true


async def test_a_look_before_the_door_hears_that_tls_has_ended_harms_nobody(
    tmp_path: Path,
) -> None:
    """The socket is gone one turn of the loop earlier."""
    authority, path = trustme.CA(), str(tmp_path / "door.pem")
    authority.issue_cert(HERE).private_key_and_cert_chain_pem.write_to_path(path)
    authority.configure_trust(trusted := ssl.create_default_context())
    limiter, now = ConnectionLimiter(DoorLimits(head_s=math.inf)), 0.0
    async with serving(Quart("door"), limiter, certificate=path) as address:
        _, client = await asyncio.open_connection(*parse_address(address), ssl=trusted)
        await comes_true(lambda: limiter.connections)
        client.close()
        while limiter.connections:
            now += HOSTS_S
            limiter.sweep(now)
            await asyncio.sleep(0)
        await client.wait_closed()
