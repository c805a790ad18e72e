"""`python -m bench.proxy.doors`: one chat by Quart, and by the front that is before it.

No socket and no node: both answer two tokens of a script as a stream, in turn, and what differs
is the framework. CPU time of this process.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
import uvloop
from quart import Quart

from api.endpoints import Headers, TextEndpoints
from api.generator import WHOLE, Event, Leg, PromptEvent, Tap, TokenEvent
from api.routes import openai_routes
from api.served import ServedModel
from api.text.tokenizing import TextCodec, load_text_codec
from deploy.config import DEMO_MODEL
from discovery.garbage_collection import freeze_loaded_objects
from engine.request import FinishReason, Request
from proxy.serving.front import Asgi, TextFront

PATH = "/v1/chat/completions"
ROUNDS, REQUESTS = 15, 150
MICRO = 1e6
NOTHING: Mapping[str, str] = {}


class Scripted:
    """A Generator that says the same two tokens to everybody."""

    def __init__(self, codec: TextCodec) -> None:
        self.tokens = codec.encode("the cat", special_tokens=False)

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        """See Generator."""
        yield PromptEvent(0)
        yield TokenEvent((self.tokens[0],))
        yield TokenEvent((self.tokens[0],), FinishReason.LENGTH)


class Unwatched:
    """RequestHooks that let everybody in and count nothing."""

    def on_request(self, path: str, headers: Headers) -> None:
        """See RequestHooks."""

    def on_answer(self, path: str, status: int, outer_id: str | None) -> Mapping[str, str]:
        """See RequestHooks."""
        return NOTHING

    def stream_comment(self, headers: Headers) -> bytes:
        """See RequestHooks."""
        return b""


def main() -> None:
    """Measure and print."""
    codec = load_text_codec(DEMO_MODEL)
    model, source = ServedModel(("m",), codec, lambda: 4096), Scripted(codec)
    quart = Quart("doors")
    quart.register_blueprint(openai_routes(source, model))
    paths = {PATH: TextEndpoints(source, model).chat}
    front = TextFront(quart, paths, Unwatched())
    for name, times in uvloop.run(_measured({"quart": quart, "front": front})).items():
        spread = f"{min(times):.0f} to {max(times):.0f}"
        sys.stdout.write(f"{name}: {statistics.median(times):.0f} us ({spread})\n")


async def _measured(doors: Mapping[str, Asgi]) -> Mapping[str, list[float]]:
    """Microseconds for a request, by door and round."""
    times = {name: list[float]() for name in doors}
    for app in doors.values():
        await _ask(app)
    freeze_loaded_objects()
    for _ in range(ROUNDS):
        for name, app in doors.items():
            since = time.process_time()
            for _ in range(REQUESTS):
                await asyncio.create_task(_ask(app))  # as servers do
            times[name].append((time.process_time() - since) / REQUESTS * MICRO)
    return times


async def _ask(app: Asgi) -> None:
    fields = {"stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}
    body, more = msgspec.json.encode(fields), asyncio.Event()
    says = iter([{"type": "http.request", "body": body}])

    async def receive() -> Mapping[str, Any]:
        for message in says:
            return message
        await more.wait()
        return {"type": "http.disconnect"}

    async def send(message: Mapping[str, Any]) -> None:
        assert message.get("status", 200) == 200, message

    await app(_scope(len(body)), receive, send)


def _scope(length: int) -> Mapping[str, Any]:
    headers = {"host": "x", "content-type": "application/json", "content-length": str(length)}
    return {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }


if __name__ == "__main__":
    main()
