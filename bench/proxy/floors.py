"""What a request costs the libraries by themselves: servers that answer nothing, and one call.

Asked as often as the proxy is, so that caches are as cold. `python -m bench.proxy` has the
other two floors, tokenizing and relays.
"""

import argparse
import asyncio
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import uvicorn
import uvloop
from quart import Quart, Response, request

from api.door.limiter import ConnectionLimiter
from api.door.protocol import limited_protocol
from bench.proxy.answers import HERE
from bench.proxy.cluster import CHAT, running
from bench.proxy.load import cpu_clock
from discovery.lifeline import end_with, report_to_starter
from proxy.serving.corked import CorkedProtocol

PAUSE_S = 0.01  # between two requests
REQUESTS, WARM = 200, 50
HEADERS = [(b"content-length", b"0")]
Message = Mapping[str, Any]


async def floors(body: bytes) -> Sequence[tuple[str, float]]:
    """Seconds of CPU for each request with this body, by what was asked."""
    found = list[tuple[str, float]]()
    for kind, name in (("plain", "uvicorn alone"), ("quart", "Quart on uvicorn")):
        async with running(kind, "-m", "bench.proxy.floors", "--kind", kind) as child:
            assert child.facts
            assert child.process
            url = f"http://{child.facts['http_address']}{CHAT}"
            server_s, client_s = await _asked(url, body, child.process.pid)
        found.append((name, server_s))
        if kind == "plain":
            found.append(("aiohttp's client, one call", client_s))
    return found


async def _asked(url: str, body: bytes, pid: int) -> tuple[float, float]:
    """What a request takes who answers it, and who asks, besides the pause."""
    theirs = ours = 0.0
    async with aiohttp.ClientSession() as session:
        for number in range(WARM + REQUESTS):
            await asyncio.sleep(PAUSE_S)
            before, since = time.clock_gettime(cpu_clock(pid)), time.process_time()
            async with session.post(url, data=body) as answer:
                await answer.read()
            if number >= WARM:
                ours += time.process_time() - since
                theirs += time.clock_gettime(cpu_clock(pid)) - before
    return theirs / REQUESTS, ours / REQUESTS


async def plain(scope: Message, receive: Any, send: Any) -> None:  # noqa: ANN401  ASGI
    """Reads a body, and answers nothing."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body"})


def by_quart() -> Quart:
    """The same, as a route."""
    app = Quart("floors")

    @app.post(CHAT)
    async def answer() -> Response:
        await request.get_data()
        return Response(b"")

    return app


def main() -> None:
    """Serve until the starter is gone, or says so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("plain", "quart"), required=True)
    parser.add_argument("--supervisor-fd", type=int, required=True)
    options = parser.parse_args()
    end_with(options.supervisor_fd)
    app = plain if options.kind == "plain" else by_quart()
    door = socket.create_server((HERE, 0))
    config = uvicorn.Config(
        app,
        http=limited_protocol(ConnectionLimiter(), CorkedProtocol),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
    report_to_starter(options.supervisor_fd, http_address=f"{HERE}:{door.getsockname()[1]}")
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    uvloop.run(uvicorn.Server(config).serve(sockets=[door]))


if __name__ == "__main__":
    main()
