"""A model thinks first, and its answer has the form that was asked for, wherever it runs."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.text.tokenizing import TextCodec, load_text_codec
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import CLOSING, make_checkpoint, teach_to_think
from tests.fakes.cluster import Cluster
from tests.fakes.driver import load
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.node import Ill
from tests.fakes.tools import WEATHER, tool
from tests.integration import test_proxy
from tests.integration.test_engine_grammars import PERSON, fits
from tests.integration.test_reasoning import put_together, told

CHAT = "/v1/chat/completions"
SCHEMA = {"name": "person", "schema": PERSON}
FORM = {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}
CITY = {**WEATHER, "properties": {"city": {"enum": ["Paris", "Rome"]}}, "x-guidance": {}}
CALL: dict[str, Any] = {"tools": [tool("weather", CITY)], "parallel_tool_calls": False}
NAMED = {"type": "function", "function": {"name": "weather"}}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    **{"max_tokens": 180, "seed": 5, "logit_bias": {str(CLOSING): 2.0}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has the marks for tokens, and begins in the middle of reasoning."""
    return teach_to_think(make_checkpoint(tmp_path_factory.mktemp("thinks")))


@pytest.fixture(scope="module")
def codec(folder: Path) -> TextCodec:
    return load_text_codec(folder)


@asynccontextmanager
async def cluster_of(
    folder: Path, codec: TextCodec, tick: int | None = None, x: int = 1
) -> AsyncGenerator[HttpCluster]:
    """Whose first decode node dies at this tick."""

    def engine() -> TorchEngine:
        return load(folder, max_num_batched_tokens=16)

    cluster = Cluster(x, 2, engine=engine)
    if tick is not None:
        cluster.decodes[0].script[tick] = Ill.KILL
    async with http_cluster(cluster, codec=codec, reasoning_parser="deepseek_r1") as proxy:
        yield proxy
        assert cluster.decodes[0].dead == (tick is not None)
        assert await proxy.settled() == 0


async def ask(proxy: HttpCluster, **fields: object) -> dict[str, Any]:
    status, data = await proxy.post(CHAT, {**ASKED, **fields})
    assert status == 200, data
    [choice] = test_proxy.read(data)["choices"]
    found: dict[str, Any] = choice
    return found


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """What is said where nobody dies; filled by the first test."""
    return {}


@pytest.mark.parametrize("tick", [None, 4, 9])
async def test_the_form_holds_behind_reasoning_wherever_a_node_dies(
    folder: Path, codec: TextCodec, tick: int | None, undisturbed: dict[str, Any]
) -> None:
    async with cluster_of(folder, codec, tick) as proxy:
        choice = await ask(proxy, **FORM)
    reasoning, content = told(choice["message"])
    assert choice["finish_reason"] == "stop"
    assert reasoning
    assert len(codec.encode(reasoning)) > 5
    assert content
    assert fits("json_schema", content)
    assert undisturbed.setdefault("form", (reasoning, content)) == (reasoning, content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_call_that_has_to_be_made_comes_behind_reasoning(
    folder: Path, codec: TextCodec, choice: object, stream: bool
) -> None:
    async with cluster_of(folder, codec) as proxy:
        asked = {**ASKED, **CALL, "tool_choice": choice, "stream": stream}
        status, data = await proxy.post(CHAT, asked)
    assert status == 200, data
    events = test_proxy.frames(data) if stream else [test_proxy.read(data)]
    choices = [one for event in events for one in event["choices"]]
    messages = [one.get("delta") or one.get("message") or {} for one in choices]
    calls = [call["function"] for one in messages for call in one.get("tool_calls") or ()]
    arguments = json.loads("".join(call["arguments"] for call in calls))
    assert arguments["city"] in ("Paris", "Rome")
    assert [call["name"] for call in calls if call.get("name")] == ["weather"]
    thought = "".join(one.get("reasoning") or "" for one in messages)
    assert len(codec.encode(thought)) > 5
    assert not any(one.get("content") for one in messages)
    ends = [one["finish_reason"] for one in choices if one["finish_reason"]]
    assert ends == ["tool_calls" if choice == "required" else "stop"]


async def test_streams_say_the_same_as_whole_answers(folder: Path, codec: TextCodec) -> None:
    async with cluster_of(folder, codec) as proxy:
        whole = await ask(proxy, **FORM)
        status, data = await proxy.post(CHAT, {**ASKED, **FORM, "stream": True})
        assert status == 200
        expected = (*told(whole["message"]), whole["finish_reason"])
        assert put_together(test_proxy.frames(data)) == expected


async def test_without_a_parser_the_form_holds_from_the_first_token(
    folder: Path, codec: TextCodec
) -> None:
    async with http_cluster(Cluster(engine=lambda: load(folder)), codec=codec) as proxy:
        choice = await ask(proxy, **FORM)
        assert fits("json_schema", choice["message"]["content"])
        assert not choice["message"].get("reasoning")
        assert await proxy.settled() == 0
