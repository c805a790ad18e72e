"""Tools may be called and a message has a form: an answer is one of both, wherever it runs."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from api.text.tokenizing import TextCodec, load_text_codec
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import CLOSING, USER, make_checkpoint, teach_to_think
from tests.fakes.cluster import Cluster
from tests.fakes.driver import load
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.node import Ill
from tests.fakes.tools import WEATHER, tool
from tests.integration import test_proxy
from tests.integration.test_engine_grammars import PERSON, fits
from tests.integration.test_reasoning import told

CHAT = "/v1/chat/completions"
CITY = {**WEATHER, "properties": {"city": {"enum": ["Paris", "Rome"]}}, "x-guidance": {}}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [tool("weather", CITY)],
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}},
    "max_tokens": 180,
}
SEEDS = range(6)
Summary = tuple[str, str, str | None]
"""The content, the arguments of a call, and the end."""


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose calls begin with a special token."""
    return with_mark(make_checkpoint(tmp_path_factory.mktemp("calls")))


def with_mark(folder: Path) -> Path:
    """A special token for calls."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(USER, "[TOOL_CALLS]"))
    return template_of(folder, "[TOOL_CALLS]")


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that thinks first, and spells its marks of calls in letters."""
    folder = teach_to_think(make_checkpoint(tmp_path_factory.mktemp("thinks")))
    return template_of(folder, "<tool_call>")


def template_of(folder: Path, mark: str) -> Path:
    """By which the model is known."""
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    settings["chat_template"] += f"{{# {mark} #}}"
    file.write_text(json.dumps(settings))
    return folder


@asynccontextmanager
async def cluster_of(
    folder: Path, tick: int | None = None, x: int = 1
) -> AsyncGenerator[HttpCluster]:
    """With `x` prefill nodes; the first decode node dies at this tick."""

    def engine() -> TorchEngine:
        return load(folder, max_num_batched_tokens=16)

    codec: TextCodec = load_text_codec(folder)
    cluster = Cluster(x, 2, engine=engine)
    if tick is not None:
        cluster.decodes[0].script[tick] = Ill.KILL
    parser: Any = "deepseek_r1" if codec.single_token("<think>") else "none"
    async with http_cluster(cluster, codec=codec, reasoning_parser=parser) as proxy:
        yield proxy
        assert await proxy.settled() == 0


async def ask(proxy: HttpCluster, **fields: object) -> Summary:
    status, data = await proxy.post(CHAT, {**ASKED, **fields})
    assert status == 200, data
    streams = bool(fields.get("stream"))
    events = test_proxy.frames(data) if streams else [test_proxy.read(data)]
    choices = [one for event in events for one in event["choices"]]
    messages = [one.get("delta") or one.get("message") or {} for one in choices]
    calls = [call["function"] for one in messages for call in one.get("tool_calls") or ()]
    assert [one["name"] for one in calls if one.get("name")] == ["weather"][: len(calls)]
    ends = [one["finish_reason"] for one in choices if one["finish_reason"]]
    return (
        "".join(one.get("content") or "" for one in messages),
        "".join(one["arguments"] for one in calls),
        ends[0],
    )


def check(said: Summary) -> None:
    content, arguments, end = said
    assert bool(content) != bool(arguments)
    if content:
        assert fits("json_schema", content)
        assert end == "stop"
    else:
        assert json.loads(arguments)["city"] in ("Paris", "Rome")
        assert end == "tool_calls"


async def test_an_answer_is_a_call_or_of_the_form(marked: Path) -> None:
    async with cluster_of(marked) as proxy:
        said = [await ask(proxy, seed=seed) for seed in SEEDS]
        for seed, one in zip(SEEDS, said, strict=True):
            check(one)
            assert await ask(proxy, seed=seed, stream=True) == one
        assert {end for _, _, end in said} == {"stop", "tool_calls"}
        form, arguments, _ = await ask(proxy, seed=0, tool_choice="none")
        assert fits("json_schema", form)
        assert not arguments
        assert (await ask(proxy, seed=0, tool_choice="required"))[2] == "tool_calls"


async def test_a_call_goes_on_where_a_node_died(marked: Path) -> None:
    async with cluster_of(marked) as proxy:
        said = {seed: await ask(proxy, seed=seed) for seed in SEEDS}
    calls = next(seed for seed, one in said.items() if one[1])
    async with cluster_of(marked, tick=9) as proxy:
        assert await ask(proxy, seed=calls) == said[calls]


async def test_either_comes_behind_reasoning(thinking: Path) -> None:
    bias = {str(CLOSING): 3.0, "0": -20.0}  # which would end it
    async with cluster_of(thinking) as proxy:
        said = [await ask(proxy, seed=seed, logit_bias=bias) for seed in SEEDS]
        for one in said:
            check(one)
        status, data = await proxy.post(CHAT, {**ASKED, "seed": 0, "logit_bias": bias})
        assert status == 200
        reasoning, _ = told(test_proxy.read(data)["choices"][0]["message"])
        assert reasoning


async def test_responses_have_it_too(marked: Path) -> None:
    function = ASKED["tools"][0]["function"]
    asked = {
        "input": "hi",
        "tools": [{"type": "function", **function}],
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "p", "schema": PERSON}},
        "max_output_tokens": 180,
    }
    kinds = set[str]()
    async with cluster_of(marked) as proxy:
        for seed in SEEDS:
            status, data = await proxy.post("/v1/responses", {**asked, "seed": seed})
            assert status == 200, data
            [item] = test_proxy.read(data)["output"]
            kinds.add(item["type"])
            if item["type"] == "message":
                assert fits("json_schema", item["content"][0]["text"])
            else:
                assert json.loads(item["arguments"])["city"] in ("Paris", "Rome")
    assert kinds == {"message", "function_call"}
