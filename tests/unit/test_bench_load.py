"""Where `pdserve bench` asks, and what it makes of when the tokens of an answer came."""

import asyncio
import json
from typing import Any

import pytest
from quart import Quart

from bench.answers import WrongAnswer
from bench.config import BenchConfig, base_url
from bench.load import LONGEST_LINE, Outcome, Workload, percentile, run_load
from tests.fakes.serving import serving


def test_tokens_that_come_at_once_do_not_hide_what_each_takes() -> None:
    outcome = Outcome()
    outcome.add(1.0, [3.0, 3.0, 3.0, 9.0])
    assert (outcome.first_token, outcome.per_token) == ([2.0], [2.0])
    assert outcome.between_tokens == [0.0, 0.0, 6.0]


def test_of_one_token_there_is_no_time_for_each() -> None:
    outcome = Outcome()
    outcome.add(1.0, [3.0])
    assert (outcome.first_token, outcome.per_token, outcome.between_tokens) == ([2.0], [], [])


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("prefix", ["", "/models/m"])
async def test_a_base_url_is_taken_as_clients_give_it(end: str, prefix: str) -> None:
    app = Quart("endpoint")

    @app.post(f"{prefix}/v1/completions")
    async def completions() -> str:
        frames: list[object] = [{"choices": [{}]}, {"usage": {"completion_tokens": 1}}]
        return "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)

    async with serving(app) as address:
        for url in (address, f"http://{address}"):
            work = Workload(requests=2, concurrency=1, output_tokens=1)
            outcome = await run_load(base_url(url + prefix + end), "m", work)
            assert len(outcome.first_token) == 2


NO_URLS = ["ftp://h", "http://", "http://h:99999", "http://[::1", "http://h/v1?a=b"]
NO_HOSTS = ["http://a..b", f"http://{'a' * 64}.com"]


@pytest.mark.parametrize("url", NO_URLS + NO_HOSTS)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not the base URL of an HTTP server"):
        BenchConfig(url=url, model="m")


@pytest.mark.parametrize("settings", [{"api_key": ("a\nb",)}, {"api_key": ("",)}, {"url": ""}])
def test_what_can_be_no_setting_is_refused_by_its_flag(settings: dict[str, Any]) -> None:
    (flag,) = ("--" + name.replace("_", "-") for name in settings)
    with pytest.raises(ValueError, match=f"^{flag} "):
        BenchConfig(**{"url": "h", "model": "m", **settings})


async def test_clients_without_a_request_are_not_made() -> None:
    """A hundred million of them would take minutes, and all the memory."""
    work = Workload(requests=0, concurrency=10**8)
    async with asyncio.timeout(10):
        assert not (await run_load("http://127.0.0.1:9/", "m", work)).first_token


async def test_as_many_requests_are_in_flight_as_asked_for() -> None:
    app, crowd, everybody = Quart("endpoint"), 101, asyncio.Event()
    here = list[None]()

    @app.post("/v1/completions")
    async def completions() -> str:
        here.append(None)
        if len(here) == crowd:
            everybody.set()
        await everybody.wait()
        frames: list[object] = [{"choices": [{}]}, {"usage": {"completion_tokens": 1}}]
        return "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)

    async with serving(app) as address, asyncio.timeout(10):
        work = Workload(requests=crowd, concurrency=crowd, output_tokens=1)
        outcome = await run_load(base_url(address), "m", work)
    assert len(outcome.first_token) == crowd


def endpoint(*frames: object) -> Quart:
    app = Quart("endpoint")

    @app.post("/v1/completions")
    async def completions() -> str:
        return "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames)

    return app


async def test_an_event_may_be_as_long_as_a_long_prompt() -> None:
    """vLLM's first one has `prompt_token_ids`."""
    first = {"choices": [{"prompt_token_ids": [10_000] * 200_000}]}
    async with serving(endpoint(first, {"usage": {"completion_tokens": 1}})) as address:
        work = Workload(requests=1, output_tokens=1)
        assert (await run_load(base_url(address), "m", work)).first_token


async def test_a_line_without_an_end_is_no_answer() -> None:
    async with serving(endpoint("x" * LONGEST_LINE)) as address:
        with pytest.raises(ExceptionGroup) as raised:
            await run_load(base_url(address), "m", Workload(requests=1))
    assert raised.group_contains(WrongAnswer, match="a line of over 8388608 bytes")


def test_a_percentile_lies_between_two_values() -> None:
    assert percentile([3.0], 0.99) == 3.0
    assert percentile([4.0, 2.0], 0.5) == 3.0
    assert percentile([1.0, 2.0, 9.0], 0.5) == 2.0
    assert percentile([float(each) for each in range(101)], 0.99) == 99.0
