"""Limits of nodes as operators set them, in processes of their own."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.cluster import MODEL, Running, read_metric, running, tokens_of
from tests.fakes.driver import prompt
from tests.fakes.waiting import is_seen

PATIENCE_S = 60.0
AT_WORK, IN_LINE = "pdserve_proxy_admitted_choices", "pdserve_proxy_queued_requests"
LIMITS: dict[str, Any] = {
    "max_requests_per_prefill_node": 1,
    "max_queued_per_node": 1,
    "first_sign_timeout_s": 120.0,  # who is stopped here is not to be given up for it
    "silence_timeout_s": 120.0,
}


async def test_a_prompt_waits_for_its_prefill_node_and_one_more_is_too_many(tiny: Path) -> None:
    async with running(tiny, prefill=1, decode=1, **LIMITS) as cluster:
        undisturbed = tokens_of(await cluster.complete(prompt(40), max_tokens=8))
        engine = cluster.engine("prefill-0")
        os.kill(engine, signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(cluster.complete(prompt(40), max_tokens=8))
            assert await is_seen(partial(counts_one, cluster, AT_WORK), PATIENCE_S)
            second = tasks.create_task(cluster.complete(prompt(40), max_tokens=8))
            assert await is_seen(partial(counts_one, cluster, IN_LINE), PATIENCE_S)
            body = {"model": MODEL, "prompt": prompt(40)}
            async with cluster.session.post(f"{cluster.url}/v1/completions", json=body) as no:
                assert no.status == 503
                assert int(no.headers["Retry-After"]) >= 1
                assert "in line for the nodes of this model" in await no.text()
            os.kill(engine, signal.SIGCONT)
        assert [tokens_of(await one) for one in (first, second)] == [undisturbed] * 2


async def test_as_many_go_as_the_decode_node_has_seats(tiny: Path) -> None:
    seats: dict[str, Any] = {
        **{"max_requests_per_node": "auto", "decode_options": {"--max-num-seqs": "1"}},
        **{"first_sign_timeout_s": 120.0, "silence_timeout_s": 120.0},
    }
    async with running(tiny, prefill=1, decode=1, **seats) as cluster:
        undisturbed = tokens_of(await cluster.complete(prompt(40), max_tokens=8))
        engine = cluster.engine("decode-0")
        os.kill(engine, signal.SIGSTOP)
        async with asyncio.TaskGroup() as tasks:
            both = [
                tasks.create_task(cluster.complete(prompt(40), max_tokens=8)) for _ in range(2)
            ]
            assert await is_seen(partial(counts_one, cluster, IN_LINE), PATIENCE_S)
            assert await counts_one(cluster, AT_WORK)
            os.kill(engine, signal.SIGCONT)
        assert [tokens_of(await one) for one in both] == [undisturbed] * 2


async def counts_one(cluster: Running, name: str) -> bool:
    """As the proxy's page has it."""
    async with cluster.session.get(f"{cluster.url}/metrics") as page:
        return read_metric(await page.text(), name) == 1
