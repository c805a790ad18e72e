"""Pages from elsewhere ask a proxy over real HTTP, and can read whatever it answers."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import pytest

from proxy.admin.guard import Guard
from proxy.admission.admission import Admission
from proxy.admission.gate import AdmissionGate
from proxy.admission.limits import KeyLimits
from tests.fakes.cluster import Cluster
from tests.fakes.hostile_http import connect, head
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster

OURS, THEIRS = "https://chat.example", "https://evil.example"
KEY = {"Authorization": "Bearer one"}
ORIGIN, READABLE = "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"
TEXTS, GENERATE, VECTORS = "/v1/completions", "/inference/v1/generate", "/v1/embeddings"
BODY = {"prompt": "the", "max_tokens": 40}
TOKENS = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 2}}
PATIENCE_S = 60
UNREAD = {"date", "server", "connection", "transfer-encoding", "vary", "x-accel-buffering"}
ALWAYS_READ = {"content-type", "content-length", "cache-control"}


@asynccontextmanager
async def proxy(*origins: str, calls: int = 100) -> AsyncGenerator[HttpCluster]:
    limited = Admission(key_limits=KeyLimits(requests_per_minute=calls))
    shields = Guard(("one",), ADMIN), AdmissionGate(limited, clock=lambda: 100.0)
    parts = {"guard": shields[0], "gate": shields[1], "origins": origins}
    async with asyncio.timeout(PATIENCE_S), http_cluster(Cluster(1, 1), **parts) as found:  # type: ignore[arg-type]
        yield found


async def ask(
    proxy: HttpCluster, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    url = f"http://{proxy.url}{path}"
    async with proxy.session.request(method, url, json=body, headers=headers) as answer:
        return answer.status, answer.headers, await answer.read()


def readable(headers: Mapping[str, str]) -> bool:
    """By a page of ours: all that this proxy says of an answer."""
    told = {name.lower() for name in headers if not name.startswith("Access-Control-")}
    shown = set(headers.get(READABLE, "").split(", "))
    return headers.get(ORIGIN) == OURS and told <= shown | UNREAD | ALWAYS_READ


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXTS, BODY),
        (TEXTS, {**BODY, "stream": True}),
        (GENERATE, TOKENS),
        (VECTORS, {"input": "the"}),
        ("/tokenize", {"prompt": "the"}),
    ],
)
async def test_answers_and_refusals_are_read_by_pages_of_ours_alone(
    path: str, body: dict[str, object]
) -> None:
    async with proxy(OURS) as found:
        plain = await ask(found, "POST", path, body, **KEY)
        status, headers, said = await ask(found, "POST", path, body, **KEY, Origin=OURS)
        assert (plain[0], status) == (200, 200)
        assert readable(headers)
        assert said.endswith(b"data: [DONE]\n\n") == bool(body.get("stream"))
        for key, wrong, status in ((KEY, {"no": 1}, 400), ({}, body, 401)):
            got, headers, said = await ask(found, "POST", path, wrong, **key, Origin=OURS)
            assert (got, headers[ORIGIN]) == (status, OURS)
            assert b"error" in said
        for other in (THEIRS, "null"):
            _, headers, _ = await ask(found, "POST", path, body, **KEY, Origin=other)
            assert headers.keys() == plain[1].keys()
        assert await found.settled() == 0


async def test_who_comes_too_often_can_read_when_to_come_back() -> None:
    async with proxy(OURS, calls=1) as found:
        await ask(found, "POST", TEXTS, BODY, **KEY)
        status, headers, _ = await ask(found, "POST", TEXTS, BODY, **KEY, Origin=OURS)
        assert (status, headers["Retry-After"]) == (429, "60")
        assert readable(headers)


async def test_no_key_and_no_limit_is_in_the_way_of_what_a_browser_asks_first() -> None:
    first = {"Access-Control-Request-Method": "POST"}
    wanted = {"Access-Control-Request-Headers": "authorization,content-type"}
    async with proxy(OURS, calls=1) as found:
        for path in (TEXTS, VECTORS, "/v1/models", "/health"):
            asked = ask(found, "OPTIONS", path, **first, **wanted, Origin=OURS)
            status, headers, said = await asked
            assert (status, said, headers[ORIGIN]) == (204, b"", OURS)
            assert headers["Access-Control-Allow-Headers"] == "authorization,content-type"
            status, headers, _ = await ask(found, "OPTIONS", path, **first, Origin=THEIRS)
            assert status != 204
            assert not [name for name in headers if name.startswith("Access-Control-")]
        status, headers, _ = await ask(found, "OPTIONS", "/instances", **first, Origin=OURS)
        assert status == 403
        assert ORIGIN not in headers
        assert (await ask(found, "POST", TEXTS, BODY, **KEY))[0] == 200


async def test_what_the_server_itself_refuses_is_read_too() -> None:
    """It is said before there is anything for an application, whatever is sent first."""
    async with proxy(OURS) as found:
        for origin in (OURS, THEIRS):
            raw = await connect(found.url)
            await raw.send(head(b"Content-Length: 999999999", b"Origin: " + origin.encode()))
            said = (await raw.rest()).lower()
            raw.close()
            assert said.startswith(b"http/1.1 413 ")
            line = f"\r\n{ORIGIN}: {OURS}\r\n".lower().encode()
            assert (line in said) == (origin == OURS)
            assert (b"access-control-" in said) == (origin == OURS)
            assert said.partition(b"\r\n\r\n")[2].startswith(b'{"error"')


async def test_nothing_is_said_where_nobody_is_allowed() -> None:
    async with proxy() as found:
        status, headers, _ = await ask(found, "POST", TEXTS, BODY, **KEY, Origin=OURS)
        assert status == 200
        assert not [name for name in headers if name.startswith("Access-Control-")]


async def test_a_path_with_more_slashes_is_the_same_path() -> None:
    """It is routed as one, so it is no more open to pages than that is."""
    async with proxy(OURS) as found:
        for path, shown in (("/health", True), ("/metrics", False), ("/instances", False)):
            for slashes in ("", "/", "//"):
                raw = await connect(found.url)
                lines = f"GET {slashes}{path} HTTP/1.1", "Connection: close", f"Origin: {OURS}"
                await raw.send("\r\n".join((*lines, "", "")).encode())
                said = (await raw.rest()).lower()
                raw.close()
                assert not said.startswith(b"http/1.1 404 ")
                assert (f"{ORIGIN}: {OURS}".lower().encode() in said) == shown
