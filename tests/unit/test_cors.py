"""Pages of origins that are allowed may ask and read; all else is as if nobody had said so."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from deploy.config import UpConfig
from deploy.up import LocalCluster
from proxy.admin.guard import is_for_clients
from proxy.serving.cors import (
    MAX_REQUESTED_HEADERS_BYTES,
    CorsPolicy,
    normalized_origin,
    with_cors,
)

OURS, THEIRS, CHATS = "https://chat.example", "https://evil.example", "/v1/chat/completions"
ORIGIN = b"access-control-allow-origin"
ASKED_FIRST = {"access-control-request-method": "POST"}
START = {"type": "http.response.start", "status": 200, "headers": [(b"vary", b"Cookie")]}
TOKEN = {"type": "http.response.body", "body": b"data: 1", "more_body": True}


class Rig:
    """A door before an application that says one token."""

    def __init__(self, *allowed: str) -> None:
        self.sent = list[Mapping[str, Any]]()
        self.sends = list[object]()
        self.origins = CorsPolicy.of(allowed, is_for_clients)

    async def app(self, scope: object, receive: object, send: Any) -> None:  # noqa: ANN401
        self.sends.append(send)
        await send(START)
        await send(TOKEN)

    async def send(self, message: Mapping[str, Any]) -> None:
        self.sent.append(message)

    async def ask(
        self, origin: str | None, path: str = CHATS, method: str = "POST", **headers: str
    ) -> Mapping[bytes, bytes]:
        """The headers of its answer but for those of the application."""
        said = {"origin": origin, **headers}
        pairs = [(name.encode(), value.encode()) for name, value in said.items() if value]
        scope = {"type": "http", "method": method, "path": path, "headers": pairs}
        await with_cors(self.app, self.origins)(scope, None, self.send)
        return dict(one for one in self.sent[0]["headers"] if one != (b"vary", b"Cookie"))

    async def ask_first(
        self, origin: str, path: str = CHATS, **headers: str
    ) -> Mapping[bytes, bytes]:
        return await self.ask(origin, path, "OPTIONS", **ASKED_FIRST, **headers)


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        ("*", "*"),
        ("https://chat.example", "https://chat.example"),
        ("HTTPS://Chat.Example", "https://chat.example"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://a:80", "http://a"),
        ("https://a:443", "https://a"),
        ("https://a:80", "https://a:80"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)
def test_an_origin_is_compared_as_browsers_send_it(said: str, sent: str) -> None:
    assert normalized_origin(said) == sent


@pytest.mark.parametrize(
    "said",
    [
        "chat.example",
        "localhost:3000",
        "https://chat.example/",
        "https://chat.example/app",
        "https://chat.example?a",
        "https://*.example",
        "https://me@chat.example",
        "https://",
        "https://a:",
        "https://a:65536",
        "https://a\r\nb: c",
        "https://a\n",
        "null",
        "**",
    ],
)
def test_what_can_be_none_is_refused_in_a_line(said: str) -> None:
    with pytest.raises(ValueError, match=r"^--allowed-origins .*scheme://host[^\n]*$"):
        normalized_origin(said)


def test_without_any_there_is_no_door() -> None:
    rig = Rig()
    assert with_cors(rig.app, rig.origins) == rig.app


async def test_an_answer_says_who_may_read_it_and_its_tokens_pass() -> None:
    rig = Rig(OURS)
    said = await rig.ask(OURS)
    assert said[ORIGIN] == OURS.encode()
    assert said[b"vary"] == b"Origin"
    assert b"x-request-id" in said[b"access-control-expose-headers"].split(b", ")
    assert b"access-control-allow-credentials" not in said
    assert (b"vary", b"Cookie") in rig.sent[0]["headers"]
    assert rig.sent[1] is TOKEN
    assert START["headers"] == [(b"vary", b"Cookie")], "the application's own is its own"


async def test_all_are_told_so() -> None:
    for origin in (THEIRS, "null"):
        said = await Rig("*").ask(origin)
        assert said[ORIGIN] == b"*"
        assert b"vary" not in said


@pytest.mark.parametrize("origin", [THEIRS, "null", "https://chat.example.evil", None])
async def test_others_are_answered_as_ever(origin: str | None) -> None:
    for first in ({}, ASKED_FIRST):
        rig = Rig(OURS)
        assert not await rig.ask(origin, CHATS, "OPTIONS", **first)
        assert rig.sends == [rig.send]
        assert rig.sent[0] is START


@pytest.mark.parametrize("path", ["/instances", "/workers/w", "/instances/add", "/status"])
async def test_no_page_is_let_to_what_operators_use(path: str) -> None:
    for allowed in (OURS, "*"):
        rig = Rig(allowed)
        assert not await rig.ask_first(OURS, path)
        assert rig.sends == [rig.send]


async def test_what_a_browser_asks_first_goes_no_further() -> None:
    rig = Rig(OURS)
    wanted = "authorization,content-type,x-stainless-os"
    said = await rig.ask_first(OURS, **{"access-control-request-headers": wanted})
    assert not rig.sends
    assert rig.sent[0]["status"] == 204
    assert (said[ORIGIN], said[b"vary"]) == (OURS.encode(), b"Origin")
    assert said[b"access-control-allow-headers"] == wanted.encode()
    assert b"POST" in said[b"access-control-allow-methods"].split(b", ")
    assert int(said[b"access-control-max-age"]) > 0
    assert b"content-length" not in said
    assert [bool(one.get("more_body")) for one in rig.sent[1:]] == [False]


async def test_no_more_is_said_again_than_pages_need() -> None:
    for size, told in (
        (MAX_REQUESTED_HEADERS_BYTES, True),
        (MAX_REQUESTED_HEADERS_BYTES + 1, False),
    ):
        rig = Rig(OURS)
        said = await rig.ask_first(OURS, **{"access-control-request-headers": "x" * size})
        assert (b"access-control-allow-headers" in said) == told
        assert rig.sent[0]["status"] == 204


async def test_options_that_no_browser_asks_by_itself_are_the_applications() -> None:
    rig = Rig(OURS)
    assert (await rig.ask(OURS, CHATS, "OPTIONS"))[ORIGIN] == OURS.encode()
    assert len(rig.sends) == 1


async def test_what_is_no_request_passes() -> None:
    rig, heard = Rig(OURS), list[Sequence[object]]()

    async def app(*given: object) -> None:
        heard.append(given)

    await with_cors(app, rig.origins)({"type": "lifespan"}, None, rig.send)
    assert heard == [({"type": "lifespan"}, None, rig.send)]


async def test_up_hands_them_to_its_proxy() -> None:
    cluster = LocalCluster(UpConfig(allowed_origins=(OURS, "*")))
    words = " ".join(cluster._proxy_arguments())
    assert f"--allowed-origins={OURS} --allowed-origins=*" in words
