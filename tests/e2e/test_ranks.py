"""Nodes whose models are shared out among several processes say what one process says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Running, running, stage, tokens_of
from tests.fakes.driver import prompt

PROMPTS = [prompt(length) for length in (1, 16, 33, 100)]
LONGER = [(*asked, *prompt(20, seed=7)) for asked in PROMPTS]  # they begin as the others
ANSWER = 12
RANKS = "--tensor-parallel-size"


async def ranks_of(cluster: Running, node: dict[str, Any]) -> int:
    url = f"http://{node['http_address']}/server_info"
    async with cluster.session.get(url) as answer:
        size: int = (await answer.json())["kv_layout"]["tensor_parallel_size"]
        return size


@pytest.mark.parametrize(
    ("connector", "prefill", "decode"),
    [("nixl", 1, 2), ("tcp", 2, 1), ("nixl", 2, 2)],
)
async def test_split_is_unsplit(tiny: Path, connector: str, prefill: int, decode: int) -> None:
    """The second round finds the first one's KV in decode's cache."""
    options = {RANKS: str(decode)}
    settings: dict[str, Any] = {
        "kv_connector": connector,
        "tensor_parallel_size": prefill,
        "kv_checksum": "full",
    }
    async with running(tiny, decode_options=options, **settings) as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        sizes = [await ranks_of(cluster, node) for node in await cluster.nodes()]
        door = f"http://{alone['http_address']}"
        for prompts in (PROMPTS, LONGER):
            split = await asyncio.gather(
                *(cluster.complete(asked, max_tokens=ANSWER) for asked in prompts)
            )
            whole = await asyncio.gather(
                *(
                    cluster.ask(door, asked, max_tokens=ANSWER, cache_salt="whole")
                    for asked in prompts
                )
            )
            assert [tokens_of(one) for one in split] == [tokens_of(one) for one in whole]
            assert all(stage(one, "transfer")["num_bytes"] for one in split)
        await cluster.blocks_come_back()
    assert sorted(sizes) == sorted([prefill, decode])
