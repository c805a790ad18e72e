"""Whatever sampling is asked for: an answer, or a 400 that names the field. Never a death."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from api.fields import CHAT, COMPLETIONS, NODE_SAMPLING
from api.routes import GENERATE
from api.text.tokenizing import load_text_codec
from api.token_bodies import GENERATE_SAMPLING, HONOURED
from tests.fakes.cluster import Cluster
from tests.fakes.driver import load
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.wishes import (
    CHAT_ONLY,
    COMPLETION_ONLY,
    GOOD,
    NODE_ONLY,
    TEXT_ONLY,
    Given,
    check_refusal,
    wishes,
)

EXAMPLES = 60
PATIENCE_S = 60


async def fuzz(
    llama: Path, strategy: st.SearchStrategy[Given], ask: Callable[[HttpCluster, Given], Any]
) -> None:
    """Hypothesis in a thread of its own, over a cluster that still answers at its end."""
    codec = load_text_codec(llama)
    codec.tokenizer.chat_template = f"{codec.tokenizer.chat_template}{{# <tool_call> #}}"
    async with http_cluster(Cluster(engine=lambda: load(llama)), codec=codec) as http:
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


async def test_completions(llama: Path) -> None:
    good = {**GOOD, **TEXT_ONLY, **COMPLETION_ONLY}

    async def ask(http: HttpCluster, wish: Given) -> None:
        body = {"max_tokens": 4, **wish, "prompt": "which way?"}
        status, data = await http.post("/v1/completions", body)
        answer = json.loads(data)
        if status != 200:
            check_refusal(status, answer, wish)
        elif not wish.get("echo"):
            Completion.model_validate(answer)

    await fuzz(llama, wishes(good, COMPLETIONS), ask)


async def test_chats(llama: Path) -> None:
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

    await fuzz(llama, wishes(good, CHAT), ask)


async def test_token_ids(llama: Path) -> None:
    good = {**GOOD, **TEXT_ONLY, "logprobs": st.integers(0, 20)}
    good = {name: one for name, one in good.items() if name in HONOURED}

    async def ask(http: HttpCluster, wish: Given) -> None:
        body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, **wish}}
        status, data = await http.post(GENERATE, body)
        answer = json.loads(data)
        if status != 200:
            check_refusal(status, answer, wish)
        else:
            assert all(one["finish_reason"] for one in answer["choices"])

    await fuzz(llama, wishes(good, GENERATE_SAMPLING), ask)


async def test_node_calls(llama: Path) -> None:
    async def ask(http: HttpCluster, wish: Given) -> None:
        address = http.cluster.decodes[0].registration.http_address
        body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, **wish}}
        url, headers = f"http://{address}{GENERATE}", http.signed(GENERATE)
        called = http.session.post(url, json={**body, "stream": True}, headers=headers)
        async with called as answer:
            data = await answer.read()
            if answer.status != 200:
                check_refusal(answer.status, json.loads(data), wish)
            elif b'"error":' in data:  # found out once it had begun
                frame = next(one for one in data.split(b"\n\n") if b'"error":' in one)
                check_refusal(400, json.loads(frame.removeprefix(b"data: ")), wish)
            else:
                assert b'"finish_reason":"' in data

    await fuzz(llama, wishes({**GOOD, **NODE_ONLY}, NODE_SAMPLING), ask)
