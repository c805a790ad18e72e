"""A node changes its role because requests wait, and no answer shows it."""

import asyncio
from pathlib import Path

from deploy.balance import Balancer
from deploy.config import BalanceConfig
from tests.e2e.cluster import Running, running, tokens_of
from tests.fakes.driver import prompt

ADMIN = "secret"
CLIENTS, ANSWER = 4, 100
PATIENCE_S = 120.0


async def test_a_prefill_node_decodes_where_answers_wait_for_seats(tiny: Path) -> None:
    few = {"--max-num-seqs": "1"}
    async with running(
        tiny, prefill=2, decode=1, decode_options=few, admin_api_key=ADMIN
    ) as cluster:
        undisturbed = tokens_of(await cluster.complete(prompt(40), max_tokens=ANSWER))
        config = BalanceConfig(
            url=cluster.url, admin_api_key=ADMIN, window_s=1.0, interval_s=0.1
        )
        balancer, over = Balancer(config), asyncio.Event()

        async def ask() -> None:
            while not over.is_set():
                said = await cluster.complete(prompt(40), max_tokens=ANSWER)
                assert tokens_of(said) == undisturbed

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(ask())
            while await roles(cluster) != ["decode", "decode", "prefill"]:
                await asyncio.to_thread(balancer.step)
            over.set()
        await cluster.blocks_come_back()


async def roles(cluster: Running) -> list[str]:
    return sorted(node["role"] for node in await cluster.nodes())
