"""Over HTTP: a client is told where its request's time went, and nobody else is."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI

from proxy.admin.guard import Guard
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster

COMPLETIONS, PATIENCE_S = "/v1/completions", 60
COMMENT = b": pdserve-timing "
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def body(**more: object) -> dict[str, object]:
    return {"prompt": "the cat sat on the mat", "max_tokens": 6, "seed": 3} | more


async def ask(
    proxy: HttpCluster, asked: object, **headers: str
) -> tuple[Mapping[str, str], bytes]:
    url = f"http://{proxy.url}{COMPLETIONS}"
    async with proxy.session.post(url, json=asked, headers=headers) as answer:
        return answer.headers, await answer.read()


async def timeline(proxy: HttpCluster, name: str, **headers: str) -> Any:  # noqa: ANN401  JSON
    """Once the proxy is through with it, which may be after its client."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, data = await proxy.get(f"/requests/{name}", **headers)
            assert status == 200, data
            found = msgspec.json.decode(data)
            if found["state"] == "done":
                return found
            await asyncio.sleep(0)


async def test_a_request_is_found_by_the_clients_name_and_by_the_answers() -> None:
    async with http_cluster(Cluster()) as proxy:
        headers, data = await ask(proxy, body(), **{"X-Request-Id": "my-request"})
        assert headers["X-Request-Id"] == "my-request"
        mine = await timeline(proxy, "my-request")
        assert mine == await timeline(proxy, msgspec.json.decode(data)["id"])
        assert (mine["request_id"], mine["status"]) == ("my-request", 200)
        (choice,) = mine["choices"]
        assert choice["finish"] == "length"
        said = [event["event"] for event in choice["events"]]
        assert said[0] == "received"
        assert said[-1] == "ended"
        assert {"planned", "leg", "ticket", "prefill", "transfer", "decode"} <= set(said)
        assert mine["total_s"] >= choice["events"][-1]["at_s"]


async def test_every_choice_has_a_timeline_of_its_own_under_one_request() -> None:
    async with http_cluster(Cluster()) as proxy:
        await ask(proxy, body(n=3), **{"X-Request-Id": "three"})
        found = await timeline(proxy, "three")
        assert [one["request_id"] for one in found["choices"]] == [
            "three-0",
            "three-1",
            "three-2",
        ]
        assert found == await timeline(proxy, "three-1")


async def test_an_answer_says_its_times_in_a_header() -> None:
    async with http_cluster(Cluster()) as proxy:
        headers, _ = await ask(proxy, body())
        entries = [entry.split(";dur=") for entry in headers["Server-Timing"].split(", ")]
        times = {name: float(value) for name, value in entries}
        assert {"tokenize", "plan", "queue", "prefill", "transfer", "decode"} <= set(times)
        assert 0 < times["first"] <= times["total"]


async def test_a_stream_says_its_times_before_its_end_if_it_is_asked_to() -> None:
    async with http_cluster(Cluster()) as proxy:
        headers, data = await ask(proxy, body(stream=True))
        assert COMMENT not in data
        assert "first;dur=" in headers["Server-Timing"]
        _, data = await ask(proxy, body(stream=True), **{"X-Pdserve-Timing": "1"})
        *_, comment, done, rest = data.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        assert comment.startswith(COMMENT)
        told = msgspec.json.decode(comment.removeprefix(COMMENT))
        (choice,) = told["choices"]
        assert choice["finish"] == "length"
        kept = await timeline(proxy, told["request_id"])
        assert choice["events"] == kept["choices"][0]["events"]


async def test_openai_clients_do_not_notice_the_comment() -> None:
    async with http_cluster(Cluster()) as proxy:
        url, more = f"http://{proxy.url}/v1", {"X-Pdserve-Timing": "1"}
        async with AsyncOpenAI(base_url=url, api_key="none", default_headers=more) as client:
            stream = await client.completions.create(
                model="tiny", prompt="the cat", max_tokens=5, stream=True, seed=1
            )
            finishes = [chunk.choices[0].finish_reason async for chunk in stream]
        assert finishes[-1] == "length"


async def test_a_request_whose_client_left_is_told_as_closed() -> None:
    async with http_cluster(Cluster(engine=lambda: FakeEngine(chunk=4))) as proxy:
        url = f"http://{proxy.url}{COMPLETIONS}"
        asked, name = body(stream=True, max_tokens=150), {"X-Request-Id": "gone"}
        async with proxy.session.post(url, json=asked, headers=name) as answer:
            await answer.content.readany()
            answer.close()
        assert await proxy.settled() == 0
        (choice,) = (await timeline(proxy, "gone"))["choices"]
        assert choice["finish"] == "closed"


async def test_a_request_that_fails_says_why_and_keeps_its_status() -> None:
    async with http_cluster(Cluster(1, 0)) as proxy:
        headers, _ = await ask(proxy, body(), **{"X-Request-Id": "lost"})
        found = await timeline(proxy, "lost")
        assert found["status"] == 503
        assert "no decode node" in found["choices"][0]["reason"]
        assert "total;dur=" in headers["Server-Timing"]


async def test_a_running_request_can_be_looked_at() -> None:
    async with http_cluster(Cluster(engine=lambda: FakeEngine(chunk=4))) as proxy:
        url, name = f"http://{proxy.url}{COMPLETIONS}", {"X-Request-Id": "now"}
        asked = body(stream=True, max_tokens=150)
        async with proxy.session.post(url, json=asked, headers=name) as answer:
            await answer.content.readany()
            status, data = await proxy.get("/requests/now")
            assert status == 200
            found = msgspec.json.decode(data)
            assert (found["state"], found["choices"][0]["finish"]) == ("running", None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer other"}, 404),
        ({"Authorization": "Bearer mine"}, 200),
        ({"X-API-Key": ADMIN}, 200),
        ({"X-API-Key": "not the admin's"}, 401),
    ],
)
async def test_only_who_asked_and_admins_see_a_timeline(
    headers: dict[str, str], status: int
) -> None:
    guard = Guard(("mine", "other"), ADMIN)
    async with http_cluster(Cluster(), guard=guard) as proxy:
        named = {"X-Request-Id": "r", "Authorization": "Bearer mine"}
        await ask(proxy, body(), **named)
        assert (await proxy.get("/requests/r", **headers))[0] == status


async def test_what_is_not_known_is_404() -> None:
    async with http_cluster(Cluster()) as proxy:
        status, data = await proxy.get("/requests/nobody")
        assert status == 404
        assert "nobody" in msgspec.json.decode(data)["error"]["message"]


@pytest.mark.parametrize(
    ("parent", "passed"), [(PARENT, True), (PARENT.upper(), False), ("nonsense", False)]
)
async def test_the_clients_trace_goes_on_at_both_nodes(parent: str, *, passed: bool) -> None:
    async with http_cluster(Cluster()) as proxy:
        await ask(proxy, body(), traceparent=parent, tracestate="a=1")
        seen = [
            (http.seen.get("traceparent"), http.seen.get("tracestate")) for http in proxy.http
        ]
        assert seen == [(PARENT, "a=1") if passed else (None, None)] * 2
