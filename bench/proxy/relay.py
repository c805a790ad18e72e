"""A bare relay of aiohttp: what a request and a chunk cost where nothing is done with them.

It copies the answer of one node call as it comes: one leg, no text, no choice of nodes. With
`--prefill` a call is two legs: it asks that node for a ticket, and copies what the other one
answers to it. That is the least that a proxy of these libraries can do.
"""

import argparse
import asyncio
import re
import signal
from contextlib import suppress

import aiohttp
import uvloop
from aiohttp import web

from bench.proxy.answers import HERE
from discovery.lifeline import end_with, report_to_starter

LARGEST = 16 << 20
BACKLOG = 4096
HOLD = b'"do_remote_decode":true'
TAKE = b'"do_remote_prefill":true,"remote_request_id":"%b"'
TICKET = re.compile(rb'"remote_request_id":"([^"]+)"')


def main() -> None:
    """Relay until the starter is gone, or says so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--node", required=True)
    parser.add_argument("--prefill")
    parser.add_argument("--supervisor-fd", type=int, required=True)
    options = parser.parse_args()
    end_with(options.supervisor_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    uvloop.run(_run(options.node, options.prefill, options.supervisor_fd))


async def _run(node: str, prefill: str | None, supervisor: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout()
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def relay(request: web.Request) -> web.StreamResponse:
            return await _copied(session, node, request, await request.read())

        async def both(request: web.Request) -> web.StreamResponse:
            body, url = await request.read(), f"http://{prefill}{request.path}"
            async with session.post(url, data=_with(body, HOLD)) as first:
                taking = _with(body, TAKE % await _ticket(first))
                response = await _copied(session, node, request, taking)
                await first.read()
                return response

        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/{path:.*}", both if prefill else relay)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, HERE, 0, backlog=BACKLOG)
        await site.start()
        report_to_starter(supervisor, http_address=f"{HERE}:{runner.addresses[0][1]}")
        await asyncio.Event().wait()


async def _copied(
    session: aiohttp.ClientSession, node: str, request: web.Request, body: bytes
) -> web.StreamResponse:
    async with session.post(f"http://{node}{request.path}", data=body) as answer:
        response = web.StreamResponse(headers={"Content-Type": answer.headers["content-type"]})
        with suppress(ConnectionResetError):  # the client has left
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
        return response


def _with(body: bytes, params: bytes) -> bytes:
    return body.replace(b"{", b'{"kv_transfer_params":{%b},' % params, 1)


async def _ticket(answer: aiohttp.ClientResponse) -> bytes:
    """Its id, out of the first frame that has one."""
    async for data in answer.content.iter_any():
        if found := TICKET.search(data):
            return found[1]
    raise aiohttp.ClientPayloadError("it gave no ticket")


if __name__ == "__main__":
    main()
