"""POST /inference/v1/generate at a proxy: the tokens of a completion, in other words."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from engine.request import Request, RequestId, Sampling
from proxy.admin.guard import Guard
from tests.fakes.cluster import Cluster
from tests.fakes.http import Json
from tests.fakes.http_cluster import CONTEXT, HttpCluster, http_cluster
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.text import byte_level

PATH, NAME = "/inference/v1/generate", "one-and-the-same"
PROMPT = [7, 3, 11, 19, 5]
PARAMS: dict[str, dict[str, object]] = {
    "noise": {"max_tokens": 12, "seed": 3},
    "noise of its name": {"max_tokens": 12},
    "usual length": {"temperature": 0},
    "choices": {"max_tokens": 6, "seed": 3, "n": 3},
    "log-probabilities": {"max_tokens": 6, "seed": 3, "logprobs": 2},
    "a stop token": {"max_tokens": 30, "seed": 3, "stop_token_ids": list(range(12))},
    "the last of a prompt": {"max_tokens": 6, "seed": 3, "truncate_prompt_tokens": 3},
}


async def tokens(proxy: HttpCluster, **more: Any) -> tuple[int, Json]:  # noqa: ANN401
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 12, "seed": 3}, **more}
    status, data = await proxy.post(PATH, body, **{"X-Request-Id": NAME})
    return status, msgspec.json.decode(data)


async def events(proxy: HttpCluster, **more: Any) -> list[Json]:  # noqa: ANN401
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 12, "seed": 3}, **more}
    headers = {"X-Request-Id": NAME}
    status, data = await proxy.post(PATH, {**body, "stream": True}, **headers)
    assert status == 200
    *frames, done, _ = data.split(b"\n\n")
    assert done == b"data: [DONE]"
    return [msgspec.json.decode(frame.removeprefix(b"data: ")) for frame in frames]


def golden(sampling: Sampling) -> list[int]:
    return alone(Request(RequestId("r"), tuple(PROMPT), sampling))


def of_stream(said: list[Json]) -> dict[int, Json]:
    """What each choice came to."""
    found = dict[int, Json]()
    for choice in (one for event in said for one in event["choices"]):
        known = found.setdefault(choice["index"], {"token_ids": [], "entries": []})
        known["token_ids"] += choice["token_ids"]
        known["entries"] += (choice["logprobs"] or {"content": []})["content"]
        known["finish_reason"], known["stop_reason"] = (
            choice["finish_reason"],
            choice["stop_reason"],
        )
    return found


@pytest.mark.parametrize("case", PARAMS)
async def test_its_tokens_are_those_of_a_completion(case: str) -> None:
    """Streamed or not, with the same name: the seed may follow from it."""
    async with http_cluster(Cluster(1, 2)) as proxy:
        params = PARAMS[case]
        asked = {"prompt": PROMPT, "return_token_ids": True, **params}
        status, data = await proxy.post("/v1/completions", asked, **{"X-Request-Id": NAME})
        wanted = msgspec.json.decode(data)
        status, said = await tokens(proxy, sampling_params=params)
        assert (status, said["request_id"], said["output_mode"]) == (200, NAME, "tokens")
        assert said["usage"]["total_tokens"] == wanted["usage"]["total_tokens"]
        streamed = of_stream(await events(proxy, sampling_params=params))
        for choice, want in zip(said["choices"], wanted["choices"], strict=True):
            came = streamed[choice["index"]]
            for field in ("token_ids", "finish_reason", "stop_reason"):
                assert choice[field] == came[field] == want[field]
            if want["logprobs"]:
                entries = choice["logprobs"]["content"]
                assert entries == came["entries"]
                told = [one["logprob"] for one in entries]
                assert told == want["logprobs"]["token_logprobs"]
                assert entries[0]["token"] == f"token_id:{choice['token_ids'][0]}"
        assert await proxy.settled() == 0


@pytest.mark.parametrize("x", [0, 1])
@pytest.mark.parametrize("tick", [2, 5, 9])
async def test_a_node_that_dies_under_it_changes_nothing(x: int, tick: int) -> None:
    cluster = Cluster(x, 2)
    cluster.decodes[0].script[tick] = Ill.KILL
    async with http_cluster(cluster) as proxy:
        (choice,) = of_stream(await events(proxy)).values()
        assert choice["token_ids"] == golden(Sampling(12, seed=3))
        assert await proxy.settled() == 0


async def test_a_proxy_without_a_tokenizer_needs_none() -> None:
    async with http_cluster(Cluster(1, 1), parcels={}) as proxy:
        status, said = await tokens(proxy)
        assert (status, said["choices"][0]["token_ids"]) == (200, golden(Sampling(12, seed=3)))
        status, said = await tokens(proxy, sampling_params={"stop": ["the"]})
        assert status == 501


async def test_strings_are_looked_for_where_there_is_a_tokenizer() -> None:
    said = golden(Sampling(12, seed=3))
    stop = byte_level().decode(said[4:6])
    async with http_cluster(Cluster(1, 1)) as proxy:
        params = {"max_tokens": 12, "seed": 3, "stop": stop}
        status, answer = await tokens(proxy, sampling_params=params)
        choice = answer["choices"][0]
        assert (status, choice["finish_reason"], choice["stop_reason"]) == (200, "stop", stop)
        assert choice["token_ids"] == said[: len(choice["token_ids"])] != said


async def test_what_a_stream_tells_besides_is_what_was_asked_for() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        plain = await events(proxy)
        assert all({*one} == {"request_id", "choices"} for one in plain)
        *parts, last = await events(proxy, stream_options={"include_usage": True})
        assert all(one["usage"] is None for one in parts)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 12)
        *_, last = await events(proxy, pdserve={"timings": True})
        assert "decode" in [one["stage"] for one in last["pdserve"]["stages"]]


REFUSED: dict[str, tuple[Mapping[str, object], str | None]] = {
    "no tokens": ({"token_ids": []}, "token_ids"),
    "texts": ({"token_ids": ["the"]}, "token_ids[0]"),
    "no such token": ({"token_ids": [10**6]}, "prompt"),
    "no parameters": ({"sampling_params": None}, "sampling_params"),
    "another output": ({"output_mode": "text"}, "output_mode"),
    "a retry": ({"num_generated": 2}, "num_generated"),
    "pictures": ({"features": {}}, "features"),
    "a beam": ({"sampling_params": {"use_beam_search": True}}, "use_beam_search"),
    "a choice of another": ({"sampling_params": {"sample_index": 2}}, "sample_index"),
    "words as tokens": ({"sampling_params": {"bad_words": [[1]]}}, "bad_words[0]"),
    "a stream of a prompt's": (
        {"sampling_params": {"prompt_logprobs": 1}, "stream": True},
        "prompt_logprobs",
    ),
    "heat": ({"sampling_params": {"temperature": -1}}, "temperature"),
    "another model": ({"model": "other"}, "model"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_it_does_not_take_is_refused_by_name(case: str) -> None:
    more, param = REFUSED[case]
    async with http_cluster(Cluster(1, 1)) as proxy:
        status, said = await tokens(proxy, **more)
        assert status == (404 if case == "another model" else 400)
        assert said["error"]["param"] == param
        assert not any(node.legs for node in proxy.cluster.nodes.values())


async def test_what_is_too_long_is_refused_before_any_node_is_asked() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        status, said = await tokens(proxy, token_ids=[1] * CONTEXT)
        assert (status, said["error"]["code"]) == (400, "context_length_exceeded")


async def test_keys_and_timelines_are_those_of_every_request() -> None:
    guard = Guard(api_keys=("sk-web",), admin_key="admin")
    async with http_cluster(Cluster(1, 1), guard=guard) as proxy:
        body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 2}}
        assert (await proxy.post(PATH, body))[0] == 401
        mine = {"Authorization": "Bearer sk-web", "X-Request-Id": NAME}
        assert (await proxy.post(PATH, body, **mine))[0] == 200
        status, data = await proxy.get(f"/requests/{NAME}", **mine)
        assert (status, msgspec.json.decode(data)["endpoint"]) == (200, PATH)
        _, page = await proxy.get("/metrics")
        assert f'endpoint="{PATH}",status="200"'.encode() in page


async def test_it_is_there_for_posts_only() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        assert (await proxy.get(PATH))[0] == 405
