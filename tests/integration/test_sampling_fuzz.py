"""Whatever sampling is asked for: an answer, or a 400 that names the field. Never a death."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from api.fields import CHAT, COMPLETIONS, NODE_SAMPLING
from api.tokenizing import load_text_codec
from tests.fakes.checkpoints import VOCABULARY, make_checkpoint
from tests.fakes.cluster import Cluster
from tests.fakes.driver import load
from tests.fakes.http_cluster import HttpCluster, http_cluster

EXAMPLES = 60
PATIENCE_S = 10
TOKEN = st.integers(0, VOCABULARY - 1)
STRUCTURED = st.sampled_from(
    [
        *({"regex": "[a-c]+"}, {"regex": "(a"}, {"choice": ["a", "bc"]}, {"json": {}}),
        *({"json_object": True}, {"grammar": 'root ::= "a" root'}, {"grammar": "?"}),
        *({"json": "{"}, {"json": {"type": "integer"}}, {"structural_tag": "{}"}, {}),
    ]
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 5),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 1000),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.001, 1e9),
    "logit_bias": st.dictionaries(TOKEN.map(str), st.floats(-100, 100), max_size=5),
    "allowed_token_ids": st.lists(TOKEN, min_size=2, max_size=5, unique=True),
    "stop_token_ids": st.lists(st.integers(0, 2**31 - 1), max_size=3),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "min_tokens": st.integers(0, 3),
    "max_tokens": st.integers(3, 8),
    "ignore_eos": st.booleans(),
    "prompt_logprobs": st.integers(0, 20),
    "structured_outputs": STRUCTURED,
}
TEXT_ONLY: dict[str, st.SearchStrategy[Any]] = {
    "bad_words": st.lists(st.text(min_size=1, max_size=5).filter(str.strip), max_size=3),
    "n": st.integers(1, 3),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "truncate_prompt_tokens": st.integers(1, 50),
    "priority": st.integers(-5, 5),
    "return_tokens_as_token_ids": st.booleans(),
}
COMPLETION_ONLY = {"echo": st.booleans(), "logprobs": st.integers(0, 20)}
CHAT_ONLY = {"logprobs": st.just(value=True), "top_logprobs": st.integers(0, 20)}
NODE_ONLY = {
    "logprobs": st.integers(-1, 50),
    "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=3),
}
WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from([-1, 0, 2, 2**31, 2**63, 2**64, -(2**63) - 1, 1e308, 5e-324, VOCABULARY]),
    lambda one: (
        st.lists(one, max_size=3)
        | st.dictionaries(st.text("0123456789-a", max_size=4), one, max_size=3)
    ),
    max_leaves=4,
)
Given = dict[str, Any]


def wishes(
    good: Mapping[str, st.SearchStrategy[Any]], others: Mapping[str, object]
) -> st.SearchStrategy[Given]:
    """Some fields as they may be, and up to two that are anything."""
    usual = st.fixed_dictionaries({}, optional=dict(good))
    odd = st.dictionaries(st.sampled_from(sorted({*good, *others})), WILD, max_size=2)
    return st.builds(lambda one, two: {**one, **two}, usual, odd)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("fuzz") / "llama")


async def fuzz(
    folder: Path, strategy: st.SearchStrategy[Given], ask: Callable[[HttpCluster, Given], Any]
) -> None:
    """Hypothesis in a thread of its own, over a cluster that still answers at its end."""
    async with http_cluster(
        Cluster(engine=lambda: load(folder)), codec=load_text_codec(folder)
    ) as http:
        loop = asyncio.get_running_loop()

        @settings(
            max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        )
        @given(strategy)
        def once(wish: Given) -> None:
            asyncio.run_coroutine_threadsafe(ask(http, wish), loop).result(PATIENCE_S)

        await asyncio.to_thread(once)
        assert await http.settled() == 0
        assert not http.cluster.suspects
        status, _ = await http.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
        assert status == 200


def check_refusal(status: int, body: Any, wish: Given) -> None:  # noqa: ANN401
    assert status == 400, body
    root = (body["error"]["param"] or "").partition(".")[0].partition("[")[0]
    assert root in wish, body
    assert body["error"]["message"]


async def test_completions(folder: Path) -> None:
    good = {**GOOD, **TEXT_ONLY, **COMPLETION_ONLY}

    async def ask(http: HttpCluster, wish: Given) -> None:
        body = {"max_tokens": 4, **wish, "prompt": "which way?"}
        status, data = await http.post("/v1/completions", body)
        answer = json.loads(data)
        if status != 200:
            check_refusal(status, answer, wish)
        elif not wish.get("echo"):
            Completion.model_validate(answer)

    await fuzz(folder, wishes(good, COMPLETIONS), ask)


async def test_chats(folder: Path) -> None:
    good = {**GOOD, **TEXT_ONLY, **CHAT_ONLY}

    async def ask(http: HttpCluster, wish: Given) -> None:
        messages = [{"role": "user", "content": "which way?"}]
        body = {"max_tokens": 4, **wish, "messages": messages}
        status, data = await http.post("/v1/chat/completions", body)
        answer = json.loads(data)
        if status == 200:
            ChatCompletion.model_validate(answer)
        else:
            check_refusal(status, answer, wish)

    await fuzz(folder, wishes(good, CHAT), ask)


async def test_node_calls(folder: Path) -> None:
    async def ask(http: HttpCluster, wish: Given) -> None:
        address = http.cluster.decodes[0].registration.http_address
        body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, **wish}}
        url = f"http://{address}/inference/v1/generate"
        async with http.session.post(url, json={**body, "stream": True}) as answer:
            data = await answer.read()
            if answer.status != 200:
                check_refusal(answer.status, json.loads(data), wish)
            elif b'"error":' in data:  # found out once it had begun
                frame = next(one for one in data.split(b"\n\n") if b'"error":' in one)
                check_refusal(400, json.loads(frame.removeprefix(b"data: ")), wish)
            else:
                assert b'"finish_reason":"' in data

    await fuzz(folder, wishes({**GOOD, **NODE_ONLY}, NODE_SAMPLING), ask)
