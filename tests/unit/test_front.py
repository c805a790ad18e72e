"""Text answered before Quart: what a client that leaves, or sends too much, comes to."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from api.door.limiter import LARGEST_BODY
from api.endpoints import Endpoint, TextEndpoints
from api.errors import ApiError
from api.generator import WHOLE, Event, Generator, Leg, Tap
from engine.request import Request
from proxy.serving.front import AsgiHeaders, TextFront
from tests.fakes.text import OneToken, saying, served

PATH, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
GONE = {"type": "http.disconnect"}
JSON = b"application/json"
Message = Mapping[str, Any]


@dataclass
class Watch:
    """Notes what it is told; lets in whom it may."""

    refusal: ApiError | None = None
    answered: list[tuple[str, int, str | None]] = field(default_factory=list)

    def on_request(self, path: str, headers: AsgiHeaders) -> None:
        if self.refusal:
            raise self.refusal

    def on_answer(self, path: str, status: int, outer_id: str | None) -> Mapping[str, str]:
        self.answered.append((path, status, outer_id))
        return {"Server-Timing": "plan;dur=1"}

    def stream_comment(self, headers: AsgiHeaders) -> bytes:
        return b": as asked\n\n" if headers.get("x-wanted") else b""


class Broken:
    """Has a bug."""

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        raise ZeroDivisionError
        yield


class Client:
    """One request, and all that is sent for it."""

    def __init__(self, door: Generator, hooks: Watch | None = None) -> None:
        self.hooks = hooks or Watch()
        texts = TextEndpoints(door, served())
        paths: dict[str, Endpoint] = {
            PATH: texts.completions,
            RESPONSES: texts.responses,
            MESSAGES: texts.messages,
        }
        self.front = TextFront(self._elsewhere, paths, self.hooks)
        self.sent: list[Message] = []
        self.elsewhere: list[str] = []
        self.says: asyncio.Queue[Message] = asyncio.Queue()

    async def _elsewhere(self, scope: Message, receive: object, send: object) -> None:
        self.elsewhere.append(scope["method"] + " " + scope["path"])

    async def ask(self, method: str = "POST", path: str = PATH, **headers: str) -> None:
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": pairs}

        async def send(message: Message) -> None:
            self.sent.append(message)

        await self.front(scope, self.says.get, send)

    def body(self, **fields: object) -> None:
        data = msgspec.json.encode({"prompt": "the", "max_tokens": 9, **fields})
        self.says.put_nowait({"type": "http.request", "body": data[:5], "more_body": True})
        self.says.put_nowait({"type": "http.request", "body": data[5:]})

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def heads(self) -> Mapping[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def said(self) -> bytes:
        assert not self.sent[-1]["more_body"]
        return b"".join(message["body"] for message in self.sent[1:])


async def test_a_stream_has_its_headers_and_what_was_asked_for_before_its_end() -> None:
    client = Client(saying("the cat"))
    client.body(stream=True, request_id="mine")
    await client.ask(**{"x-wanted": "1"})
    assert client.said.endswith(b"\n\n: as asked\n\ndata: [DONE]\n\n")
    assert client.heads[b"content-type"].startswith(b"text/event-stream")
    assert client.heads[b"x-request-id"] == b"mine"
    assert client.heads[b"server-timing"] == b"plan;dur=1"
    assert client.hooks.answered == [(PATH, 200, "mine")]


async def test_the_last_event_of_a_response_is_sent_with_the_end() -> None:
    client = Client(saying("the cat"))
    client.body(stream=True, input="the", prompt=None, max_tokens=None)
    await client.ask(path=RESPONSES, **{"x-wanted": "1"})
    last = client.sent[-1]
    assert not last["more_body"]
    assert b"\n\n: as asked\n\nevent: response.completed\n" in last["body"]
    assert [one.get("more_body") for one in client.sent].count(False) == 1


async def test_the_last_events_of_a_message_are_sent_with_the_end() -> None:
    client = Client(saying("the cat"))
    messages = [{"role": "user", "content": "hi"}]
    client.body(stream=True, messages=messages, prompt=None, request_id="mine")
    await client.ask(path=MESSAGES, **{"x-wanted": "1"})
    last = client.sent[-1]
    assert not last["more_body"]
    assert b"\n\n: as asked\n\nevent: message_delta\n" in last["body"]
    assert [one.get("more_body") for one in client.sent].count(False) == 1
    assert client.heads[b"request-id"] == client.heads[b"x-request-id"] == b"mine"


async def test_a_refusal_has_the_form_of_its_path() -> None:
    for path, key in ((PATH, "param"), (MESSAGES, "request_id")):
        client = Client(saying("the cat"))
        client.body(max_tokens=-1, request_id="mine")
        await client.ask(path=path)
        assert client.status == 400
        said = msgspec.json.decode(client.said)
        assert key in (said if path == MESSAGES else said["error"])
        assert said.get("type") == ("error" if path == MESSAGES else None)


async def test_a_whole_answer_has_a_length() -> None:
    client = Client(saying("the cat"))
    client.body()
    await client.ask()
    assert client.heads[b"content-length"] == str(len(client.said)).encode()
    assert msgspec.json.decode(client.said)["choices"][0]["text"] == "the cat"


async def test_a_client_that_leaves_ends_the_work_on_its_request() -> None:
    for stream in (True, False):
        door = OneToken()
        client = Client(door)
        client.body(stream=stream)
        asking = asyncio.create_task(client.ask())
        await door.waits.wait()
        client.says.put_nowait(GONE)
        await asking
        assert door.closed.is_set()
        assert len(client.sent) == (2 if stream else 0)


async def test_who_cancels_the_request_itself_is_told_so() -> None:
    door = OneToken()
    client = Client(door)
    client.body()
    asking = asyncio.create_task(client.ask())
    await door.waits.wait()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    assert asking.cancelled()
    assert door.closed.is_set()


async def test_a_client_that_leaves_within_its_body_is_answered_nothing() -> None:
    client = Client(saying("the cat"))
    client.says.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    client.says.put_nowait(GONE)
    await client.ask()
    assert not client.sent


async def test_a_body_that_is_too_large_is_refused_before_its_end() -> None:
    client = Client(saying("the cat"))
    half = b" " * (LARGEST_BODY // 2 + 1)
    for _ in range(2):
        client.says.put_nowait({"type": "http.request", "body": half, "more_body": True})
    await client.ask()
    assert client.status == 413


async def test_a_stranger_is_refused_before_the_body_is_read() -> None:
    class Stranger(ApiError):
        status = 401

    client = Client(saying("the cat"), Watch(Stranger("who?")))
    client.body()
    await client.ask()
    assert client.status == 401
    assert msgspec.json.decode(client.said)["error"]["message"] == "who?"
    assert client.says.qsize() == 2
    assert client.hooks.answered == [(PATH, 401, None)]


async def test_our_mistake_is_a_500_that_has_the_requests_name() -> None:
    client = Client(Broken())
    client.body(request_id="mine", stream=True)
    await client.ask()
    assert client.status == 500
    assert client.heads[b"x-request-id"] == b"mine"
    assert b"made a mistake" in client.said


async def test_all_else_is_for_the_app() -> None:
    client = Client(saying("the cat"))
    await client.ask("GET")
    await client.ask("POST", "/v1/embeddings")
    assert client.elsewhere == ["GET /v1/completions", "POST /v1/embeddings"]
    assert not client.sent


def test_of_a_header_that_comes_twice_the_first_counts() -> None:
    fields = AsgiHeaders([(b"x-request-id", b"one"), (b"x-request-id", b"two")])
    assert fields.get("X-Request-Id") == "one"
    assert fields.get("X-Other") is None
