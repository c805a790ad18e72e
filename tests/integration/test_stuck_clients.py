"""What clients that take nothing cost in memory, over real sockets on both sides."""

import asyncio
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing

from quart import Quart

from api.door.limiter import ConnectionLimiter
from api.generated import encode_event
from api.generator import WHOLE, Event, Leg, PromptEvent, Tap, TokenEvent
from api.routes import openai_routes
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import Request, RequestId
from proxy.nodes.client import HttpNodeClient
from proxy.nodes.connection_pool import ConnectionPool, open_connections
from tests.fakes.hostile_http import post, stuck
from tests.fakes.raw_http import SSE, Step, chunk, raw_server
from tests.fakes.serving import serving
from tests.fakes.text import served

CLIENTS = 2
MOST_HELD = 640 << 10  # bytes for each, those that its node has not sent included
PATIENCE_S = 60
NAME = RequestId("r")
BEGUN = SSE + chunk(encode_event(NAME, PromptEvent(0)))
MANY = chunk(encode_event(NAME, TokenEvent((5,))) * 1_000)  # what a node has ready at once
ENDLESS = post(b'{"prompt": "the", "max_tokens": 100, "stream": true}')


class OneNode:
    """A Generator that asks the same node for everything."""

    def __init__(self, lines: ConnectionPool, address: str) -> None:
        self.client = HttpNodeClient(lines)
        self.node = Node(Registration(Role.DECODE, address, "", "d"), heard_at=0.0)

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        """See Generator."""
        async with aclosing(self.client.generate(self.node, request, leg)) as events:
            async for event in events:
                yield event


def pour(poured: list[int]) -> Iterator[Step]:
    """As fast as it is taken, without end."""
    yield BEGUN
    while True:
        poured[0] += 1
        yield MANY


async def test_a_client_that_takes_nothing_holds_little_memory() -> None:
    poured, limiter, app, model = [0], ConnectionLimiter(), Quart("door"), served()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(PATIENCE_S))
        scripts = [pour(poured) for _ in range(CLIENTS)]
        node = await stack.enter_async_context(raw_server(*scripts))
        lines = await stack.enter_async_context(open_connections())
        app.register_blueprint(openai_routes(OneNode(lines, node.address), model))
        address = await stack.enter_async_context(serving(app, limiter))
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(CLIENTS):
            stack.enter_context(await stuck(address, ENDLESS))
        await _still(lambda: poured[0] if len(limiter.writes) == CLIENTS else None)
        held, _ = tracemalloc.get_traced_memory()
        assert (held - before) / CLIENTS < MOST_HELD
    model.grammars.close()


async def _still(said: Callable[[], int | None]) -> None:
    """It says the same for two hundred turns of the loop."""
    before: int | None = -1
    while before is None or before != said():
        before = said()
        for _ in range(200):
            await asyncio.sleep(0)
