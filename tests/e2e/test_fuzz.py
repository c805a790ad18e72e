"""Wild sampling parameters against real processes: the engines are there afterwards."""

import asyncio
import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings

from api.fields import COMPLETIONS, NODE_SAMPLING
from api.routes import GENERATE
from api.token_bodies import HONOURED
from tests.e2e.cluster import Running, running
from tests.fakes.wishes import (
    COMPLETION_ONLY,
    GOOD,
    NODE_ONLY,
    TEXT_ONLY,
    Given,
    check_refusal,
    wishes,
)

EXAMPLES = 40
PATIENCE_S = 120
TEXT = wishes({**GOOD, **TEXT_ONLY, **COMPLETION_ONLY}, COMPLETIONS)
NODE = wishes({**GOOD, **NODE_ONLY}, NODE_SAMPLING)


async def test_no_wish_kills_an_engine(tiny: Path) -> None:
    async with running(tiny) as cluster:
        names = ("prefill-0", "decode-0")
        before = [cluster.engine(name) for name in names]
        loop = asyncio.get_running_loop()
        slow = [HealthCheck.too_slow]

        @settings(max_examples=EXAMPLES, suppress_health_check=slow)
        @given(TEXT, NODE)
        def once(text: Given, node: Given) -> None:
            asking = _complete(cluster, text), _generate(cluster, text), _call(cluster, node)
            for asked in asking:
                asyncio.run_coroutine_threadsafe(asked, loop).result(PATIENCE_S)

        await asyncio.to_thread(once)
        assert [cluster.engine(name) for name in names] == before
        await cluster.blocks_come_back()


async def _complete(cluster: Running, wish: Given) -> None:
    """Through the proxy, on both nodes."""
    body = {"max_tokens": 4, **wish, "prompt": "which way?"}
    async with cluster.session.post(f"{cluster.url}/v1/completions", json=body) as answer:
        if answer.status != 200:
            check_refusal(answer.status, await answer.json(), wish)


async def _generate(cluster: Running, wish: Given) -> None:
    """The same, in token ids."""
    params = {name: value for name, value in wish.items() if name in HONOURED}
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, **params}}
    async with cluster.session.post(f"{cluster.url}{GENERATE}", json=body) as answer:
        if answer.status != 200:
            check_refusal(answer.status, await answer.json(), params)


async def _call(cluster: Running, wish: Given) -> None:
    """To the decode node itself, without the checks of a text door."""
    address = next(one for one in await cluster.nodes() if one["role"] == "decode")[
        "http_address"
    ]
    body = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, **wish}}
    url = f"http://{address}{GENERATE}"
    async with cluster.session.post(url, json={**body, "stream": True}) as answer:
        data = await answer.read()
    if answer.status != 200:
        check_refusal(answer.status, json.loads(data), wish)
    else:
        assert b'"finish_reason":"' in data or b'"error":' in data
