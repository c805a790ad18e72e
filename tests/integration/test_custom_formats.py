"""Custom tools whose text has a form: it has it wherever the answer runs, and by any choice."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.http_cluster import HttpCluster
from tests.integration import test_proxy
from tests.integration.test_forms_beside_tools import cluster_of, with_mark
from tests.integration.test_strict_functions import bias_of

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LARK = 'start: line{1,3}\nline: ("+" | "-") /["a-c\\\\]{0,4}/ LF\n%import common.LF'
AS_PATTERN = r'(?:[+-]["a-c\\]{0,4}\n){1,3}'
PATTERN = '[a-c"\\\\]{2,6}\n?'
RUN = {"type": "custom", "custom": {"name": "run"}}
SEEDS = range(5)
FORMS = pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [("lark", LARK, AS_PATTERN), ("regex", PATTERN, PATTERN)],
)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose calls begin with a special token."""
    return with_mark(make_checkpoint(tmp_path_factory.mktemp("calls")))


def asked(syntax: str, definition: str, **fields: object) -> dict[str, Any]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tool = {"type": "custom", "custom": {"name": "run", "format": form}}
    once = {"parallel_tool_calls": False, "max_tokens": 160}
    return {"messages": [{"role": "user", "content": "hi"}], "tools": [tool], **once, **fields}


async def ask(proxy: HttpCluster, fields: dict[str, Any]) -> tuple[str, str]:
    """The text that the tool is given, if it is called, and the end."""
    status, data = await proxy.post(CHAT, fields)
    assert status == 200, data
    events = test_proxy.frames(data) if fields.get("stream") else [test_proxy.read(data)]
    choices = [one for event in events for one in event["choices"]]
    messages = [one.get("delta") or one.get("message") or {} for one in choices]
    calls = [call["custom"] for one in messages for call in one.get("tool_calls") or ()]
    [end] = [one["finish_reason"] for one in choices if one["finish_reason"]]
    return "".join(one["input"] for one in calls), end


@FORMS
async def test_a_text_has_its_form_wherever_it_is_written(
    marked: Path, syntax: str, definition: str, pattern: str
) -> None:
    bias = bias_of(marked)
    chosen = {"required": "required", "named": RUN, "auto": "auto"}
    wanted = {
        (name, seed): asked(
            syntax,
            definition,
            tool_choice=choice,
            seed=seed,
            logit_bias=bias if name == "auto" else {},
        )
        for name, choice in chosen.items()
        for seed in SEEDS
    }
    async with cluster_of(marked) as proxy:
        said = {one: await ask(proxy, fields) for one, fields in wanted.items()}
        for one, fields in wanted.items():
            assert await ask(proxy, {**fields, "stream": True}) == said[one]
    whole = {"required": "tool_calls", "named": "stop", "auto": "tool_calls"}
    called = [(name, text) for (name, _), (text, end) in said.items() if end == whole[name]]
    assert {name for name, _ in called} == {*chosen}
    for _, text in called:
        assert re.fullmatch(pattern, text), text
    async with cluster_of(marked, tick=9) as proxy:
        first = "required", 0
        assert await ask(proxy, wanted[first]) == said[first]


async def test_a_response_gives_such_a_text_and_says_what_it_was_asked(marked: Path) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": LARK}
    tools = [{"type": "custom", "name": "run", "description": "x", "format": form}]
    body = {"input": "hi", "tools": tools, "tool_choice": "required", "max_output_tokens": 160}
    async with cluster_of(marked) as proxy:
        status, data = await proxy.post(RESPONSES, {**body, "parallel_tool_calls": False})
        assert status == 200, data
        said = test_proxy.read(data)
        [call] = said["output"]
        assert re.fullmatch(AS_PATTERN, call["input"])
        assert said["tools"] == tools
        tools[0]["format"] = {**form, "definition": "start: ("}
        status, data = await proxy.post(RESPONSES, body)
    assert status == 400
    error = test_proxy.read(data)["error"]
    assert error["param"] == "tools[0].format"
    assert "lark: line 1" in error["message"]
