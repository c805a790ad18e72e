"""A bare relay of aiohttp: what a request and a chunk cost where nothing is done with them.

It copies the answer of one node call as it comes: one leg, no text, no choice of nodes.
"""

import argparse
import asyncio
import signal
from contextlib import suppress

import aiohttp
import uvloop
from aiohttp import web

from bench.proxy.answers import HERE
from discovery.lifeline import end_with, tell

LARGEST = 16 << 20
BACKLOG = 4096


def main() -> None:
    """Relay until the starter is gone, or says so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", required=True)
    parser.add_argument("--supervisor-fd", type=int, required=True)
    options = parser.parse_args()
    end_with(options.supervisor_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    uvloop.run(_run(options.node, options.supervisor_fd))


async def _run(node: str, supervisor: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            async with session.post(f"http://{node}{request.path}", data=body) as answer:
                response = web.StreamResponse(
                    headers={"Content-Type": answer.headers["content-type"]}
                )
                with suppress(ConnectionResetError):  # the client has left
                    await response.prepare(request)
                    async for data in answer.content.iter_any():
                        await response.write(data)
                    await response.write_eof()
                return response

        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/{path:.*}", relay)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, HERE, 0, backlog=BACKLOG)
        await site.start()
        tell(supervisor, http_address=f"{HERE}:{runner.addresses[0][1]}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
