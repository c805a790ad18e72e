"""Text in, text out, over HTTP all the way, whatever becomes of the nodes."""

import logging
from typing import Any

import msgspec
import pytest

from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.text import byte_level

PROMPT = "the cat sat on the mat"
COMPLETIONS = "/v1/completions"


def small() -> FakeEngine:
    return FakeEngine(chunk=4)


def body(**more: object) -> dict[str, object]:
    asked = {"prompt": PROMPT, "max_tokens": 12, "seed": 3, "return_token_ids": True}
    return asked | {"temperature": 1.0} | more


def expected() -> list[int]:
    sampling = Sampling(12, seed=3)
    return alone(Request(RequestId("r"), byte_level().encode(PROMPT), sampling))


def read(data: bytes) -> Any:  # noqa: ANN401  JSON
    return msgspec.json.decode(data)


def frames(data: bytes) -> list[Any]:
    """All events of a stream but the last, which is [DONE]."""
    *events, done, rest = data.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    return [read(event.removeprefix(b"data: ")) for event in events]


def tokens_of(chunks: list[Any]) -> list[int]:
    return [token for chunk in chunks for token in chunk["choices"][0].get("token_ids") or ()]


async def stream(proxy: HttpCluster, after: int, name: str, ill: Ill) -> bytes:
    """The whole stream, with something happening to a node after some bytes of it."""
    url, data = f"http://{proxy.url}{COMPLETIONS}", b""
    async with proxy.session.post(url, json=body(stream=True)) as answer:
        assert answer.status == 200
        async for part in answer.content.iter_any():
            data += part
            if data.count(b"\n\n") >= after:
                proxy.cluster.nodes[name].suffer(ill)
                after = 10_000
    return data


@pytest.mark.parametrize("x", [0, 1, 2])
async def test_a_completion_is_what_the_model_alone_says(x: int) -> None:
    async with http_cluster(Cluster(x, 2)) as proxy:
        status, data = await proxy.post(COMPLETIONS, body())
        assert (status, read(data)["choices"][0]["token_ids"]) == (200, expected())
        _, data = await proxy.post(COMPLETIONS, body(stream=True))
        assert tokens_of(frames(data)) == expected()
        assert not proxy.health.failures
        assert await proxy.settled() == 0


async def test_a_client_that_wants_one_token_is_no_driver_of_a_prefill_leg() -> None:
    async with http_cluster(Cluster()) as proxy:
        status, data = await proxy.post(COMPLETIONS, body(max_tokens=1))
        (choice,) = read(data)["choices"]
        assert (status, choice["token_ids"]) == (200, expected()[:1])
        assert choice["finish_reason"] == "length"
        assert "kv_transfer_params" not in read(data)
        assert await proxy.settled() == 0


async def test_choices_and_prompts_run_beside_each_other() -> None:
    async with http_cluster(Cluster(2, 2)) as proxy:
        _, data = await proxy.post(COMPLETIONS, body(n=3, prompt=[PROMPT, "the dog"]))
        choices = read(data)["choices"]
        assert len(choices) == 6
        assert choices[0]["token_ids"] == expected()
        assert await proxy.settled() == 0


async def test_a_clients_transfer_params_change_nothing() -> None:
    params = {"do_remote_prefill": True, "remote_host": "evil", "remote_port": 1}
    async with http_cluster(Cluster()) as proxy:
        status, data = await proxy.post(COMPLETIONS, body(kv_transfer_params=params))
        assert (status, read(data)["choices"][0]["token_ids"]) == (200, expected())


@pytest.mark.parametrize("name", ["p0", "d0"])
@pytest.mark.parametrize("after", [1, 5])
@pytest.mark.parametrize("ill", [Ill.KILL, Ill.CUT])
async def test_a_node_that_dies_mid_stream_costs_no_token(
    name: str, after: int, ill: Ill
) -> None:
    async with http_cluster(Cluster(2, 2, engine=small)) as proxy:
        data = await stream(proxy, after, name, ill)
        assert tokens_of(frames(data)) == expected()
        assert await proxy.settled() == 0


async def test_a_client_that_leaves_closes_both_legs() -> None:
    async with http_cluster(Cluster(engine=small)) as proxy:
        url = f"http://{proxy.url}{COMPLETIONS}"
        asked = body(stream=True, max_tokens=150)
        async with proxy.session.post(url, json=asked) as answer:
            await answer.content.readany()
            answer.close()
        assert await proxy.settled() == 0
        assert b'answers_total{finish="closed"} 1.0' in proxy.door.metrics.render()


async def test_without_a_decode_node_it_is_503_and_try_later() -> None:
    async with http_cluster(Cluster(1, 0)) as proxy:
        url = f"http://{proxy.url}{COMPLETIONS}"
        async with proxy.session.post(url, json=body(stream=True)) as answer:
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert "no decode node" in (await answer.json())["error"]["message"]


async def test_an_error_before_the_first_byte_has_a_status() -> None:
    async with http_cluster(Cluster(0, 1), tries=1) as proxy:
        proxy.cluster.decodes[0].suffer(Ill.KILL)
        status, data = await proxy.post(COMPLETIONS, body(stream=True))
        assert (status, read(data)["error"]["type"]) == (502, "server_error")


async def test_an_error_after_the_first_byte_is_one_event() -> None:
    async with http_cluster(Cluster(0, 1, engine=small), tries=1) as proxy:
        *chunks, last = frames(await stream(proxy, 1, "d0", Ill.KILL))
        assert tokens_of(chunks) == expected()[: len(tokens_of(chunks))]
        assert last["error"]["type"] == "server_error"


async def test_each_request_ends_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "proxy")
    async with http_cluster(Cluster()) as proxy:
        headers = {"X-Request-Id": "r1"}
        await proxy.post(COMPLETIONS, body(), **headers)
        p0, d0 = (node.registration.http_address for node in proxy.cluster.nodes.values())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"request_id=r1 endpoint={COMPLETIONS} model=tiny prompt_tokens=6 cached_tokens=0 "
        "fetched_tokens=0 "
        f"output_tokens=12 finish=length nodes={p0}->{d0} tries=1 first_token_s="
    )
    assert 0 < float(line.partition("first_token_s=")[2].split()[0]) < 60


async def test_how_far_off_a_plan_was_is_counted_where_it_was_carried_out_as_it_was() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        await proxy.post(COMPLETIONS, body())
        proxy.cluster.prefills[0].suffer(Ill.KILL)
        await proxy.post(COMPLETIONS, body())  # another try: nobody had foretold that
        _, page = await proxy.get("/metrics")
    lines = set(page.decode().splitlines())
    for of in ("first_token", "finish"):
        assert f'pdserve_proxy_estimate_ratio_count{{of="{of}"}} 1.0' in lines


async def test_metrics_count_what_happened() -> None:
    async with http_cluster(Cluster(2, 1)) as proxy:
        proxy.cluster.prefills[1].suffer(Ill.KILL)
        failed = proxy.cluster.prefills[1].registration.http_address
        await proxy.post(COMPLETIONS, body())
        await proxy.post(COMPLETIONS, {"prompt": 1})
        _, page = await proxy.get("/metrics")
    lines = set(page.decode().splitlines())
    p = "pdserve_proxy_"
    assert {
        f'{p}requests_total{{endpoint="{COMPLETIONS}",status="200"}} 1.0',
        f'{p}requests_total{{endpoint="{COMPLETIONS}",status="400"}} 1.0',
        f'{p}answers_total{{finish="length"}} 1.0',
        f'{p}tokens_total{{kind="prompt"}} 6.0',
        f'{p}tokens_total{{kind="output"}} 12.0',
        f"{p}tries_total 2.0",
        f'{p}retries_total{{reason="told"}} 1.0',
        f"{p}requests_in_flight 0.0",
        f"{p}time_to_first_token_seconds_count 1.0",
        f"{p}request_duration_seconds_count 1.0",
        f'{p}nodes{{role="prefill"}} 2.0',
        f'{p}node_failures_total{{node="{failed}"}} 1.0',
    } <= lines
