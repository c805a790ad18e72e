"""Two nodes whose KV blocks have different sizes say what one of them says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Running, running, stage, tokens_of
from tests.fakes.driver import prompt

LENGTHS = [1, 15, 16, 17, 31, 32, 33, 64, 100]
PROMPTS = [prompt(length) for length in LENGTHS]
LONGER = [(*asked, *prompt(20, seed=7)) for asked in PROMPTS]  # they begin as the others
ANSWER = 12


async def block_size(cluster: Running, node: dict[str, Any]) -> int:
    url = f"http://{node['http_address']}/server_info"
    async with cluster.session.get(url) as answer:
        size: int = (await answer.json())["kv_layout"]["block_size"]
        return size


@pytest.mark.parametrize(
    ("connector", "prefill", "decode"), [("nixl", 16, 32), ("tcp", 32, 16)]
)
async def test_split_is_unsplit(tiny: Path, connector: str, prefill: int, decode: int) -> None:
    """Pain 30; the second round finds the first one's KV in decode's cache."""
    options = {"--block-size": str(decode)}
    settings: dict[str, Any] = {
        "kv_connector": connector,
        "block_size": prefill,
        "kv_checksum": "full",
    }
    async with running(tiny, decode_options=options, **settings) as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        sizes = [await block_size(cluster, node) for node in await cluster.nodes()]
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
    assert sorted(sizes) == [16, 32]
