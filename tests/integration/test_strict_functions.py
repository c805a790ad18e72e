"""Strict functions may be called, and an answer is any text but for calls: wherever it runs."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from api.text.tokenizing import load_text_codec
from tests.fakes.checkpoints import CLOSING, VOCABULARY, make_checkpoint, teach_to_think
from tests.fakes.http_cluster import HttpCluster
from tests.fakes.tools import WEATHER, tool
from tests.integration import test_proxy
from tests.integration.test_forms_beside_tools import (
    Summary,
    cluster_of,
    template_of,
    with_mark,
)
from tests.integration.test_forms_beside_tools import ask as ask_for_either
from tests.integration.test_reasoning import told

CHAT = "/v1/chat/completions"
MARK = "[TOOL_CALLS]"
CITY = {**WEATHER, "properties": {"city": {"enum": ["Paris", "Rome"]}}, "x-guidance": {}}
STRICT = tool("weather", CITY)
STRICT["function"]["strict"] = True
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [STRICT],
    "response_format": None,
    "parallel_tool_calls": False,
    "max_tokens": 120,
}
SEEDS = range(6)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose calls begin with a special token."""
    return with_mark(make_checkpoint(tmp_path_factory.mktemp("calls")))


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that thinks first, and spells its marks of calls in letters."""
    folder = teach_to_think(make_checkpoint(tmp_path_factory.mktemp("thinks")))
    return template_of(folder, "<tool_call>")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose calls have no mark: lists in Python."""
    return template_of(make_checkpoint(tmp_path_factory.mktemp("bare")), "[func_name1(")


def bias_of(folder: Path) -> dict[str, float]:
    """With which a model likes to call, and does not end at once."""
    codec = load_text_codec(folder)
    [mark] = codec.encode(MARK)
    return {str(mark): 4.0, "0": -3.0}


async def ask(proxy: HttpCluster, **fields: object) -> Summary:
    return await ask_for_either(proxy, **{**ASKED, **fields})


def check(said: Summary) -> None:
    content, arguments, end = said
    assert MARK not in content
    assert (end == "tool_calls") == bool(arguments)
    if arguments:
        assert json.loads(arguments)["city"] in ("Paris", "Rome")


async def test_calls_in_text_fit_wherever_they_run(marked: Path) -> None:
    bias = bias_of(marked)
    async with cluster_of(marked) as proxy:
        split = [await ask(proxy, seed=seed, logit_bias=bias) for seed in SEEDS]
        streamed = [await ask(proxy, seed=seed, logit_bias=bias, stream=True) for seed in SEEDS]
    for said in split:
        check(said)
    assert streamed == split
    assert {bool(content) for content, arguments, _ in split if arguments} == {True}
    async with cluster_of(marked, x=0) as proxy:
        assert [await ask(proxy, seed=seed, logit_bias=bias) for seed in SEEDS] == split
    calls = next(seed for seed, said in zip(SEEDS, split, strict=True) if said[1])
    async with cluster_of(marked, tick=9) as proxy:
        assert await ask(proxy, seed=calls, logit_bias=bias) == split[calls]


async def test_text_without_calls_is_what_the_model_says_anyway(marked: Path) -> None:
    free = deepcopy(ASKED)
    free["tools"][0]["function"].pop("strict")
    codec = load_text_codec(marked)
    said = {token: codec.decode([token]) for token in range(VOCABULARY)}
    plain = [token for token, text in said.items() if text and text.isascii()]
    words = {"allowed_token_ids": [*plain, 0], "max_tokens": 40}  # text is whole characters
    async with cluster_of(marked) as proxy:
        for seed in SEEDS:
            held = await ask(proxy, seed=seed, **words)
            status, data = await proxy.post(CHAT, {**free, "seed": seed, **words})
            assert status == 200
            choice = test_proxy.read(data)["choices"][0]
            assert held == (choice["message"]["content"], "", choice["finish_reason"])


async def test_text_begins_behind_reasoning(thinking: Path) -> None:
    bias = {str(CLOSING): 3.0, "0": -20.0}  # which would end it
    async with cluster_of(thinking) as proxy:
        fields = {**ASKED, "seed": 0, "logit_bias": bias}
        status, data = await proxy.post(CHAT, fields)
        assert status == 200
        said = told(test_proxy.read(data)["choices"][0]["message"])
        streamed = await ask(proxy, seed=0, logit_bias=bias, stream=True)
    reasoning, content = said
    assert reasoning
    assert content == streamed[0]
    check(streamed)


async def test_calls_without_a_mark_fit_where_the_answer_begins_with_one(bare: Path) -> None:
    codec = load_text_codec(bare)
    likes = {str(codec.encode(one)[0]): 9.0 for one in "[f("}
    one = tool("f", CITY)
    one["function"]["strict"] = True
    called, texts = list[str](), list[str]()
    async with cluster_of(bare) as proxy:
        for seed in SEEDS:
            fields = {"tools": [one], "seed": seed, "n": 16, "logit_bias": likes}
            status, data = await proxy.post(CHAT, {**ASKED, **fields})
            assert status == 200
            for choice in test_proxy.read(data)["choices"]:
                calls = choice["message"].get("tool_calls", [])
                whole = choice["finish_reason"] == "tool_calls"
                called += [one["function"]["arguments"] for one in calls if whole]
                texts += [] if calls else [choice["message"]["content"]]
    assert called
    assert {json.loads(arguments)["city"] for arguments in called} <= {"Paris", "Rome"}
    assert any(text.startswith("[") for text in texts)
    assert not any(text.startswith("[f(") for text in texts)
