"""Decode fetches KV while prefill computes the rest of the prompt: counted on the wire."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.cluster import Running, running
from tests.e2e.streams import chunks
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt
from tests.soak.soak import follow
from tests.soak.victims import Victim
from tests.soak.wires import DATA, Wires

LENGTH, CHUNK = 1536, 128
SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "max_position_embeddings": 4096,
}
FLAGS = (
    *("--dtype", "float32", "--threads", "1", "--device", "cpu", "--kv-connector", "tcp"),
    *("--max-num-batched-tokens", str(CHUNK)),
)
PROMPTS = 8  # at most: a machine that is busy with something else shows little at times
MOST_OF_IT = 0.5
LEAST_BYTES = 1 << 20  # of a prompt's KV; a busy machine may let its decode node compute it
PATIENCE_S = 60


async def test_most_of_the_kv_is_there_when_the_first_token_leaves(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", **SHAPE)
    async with (
        running(folder, prefill=0, decode=1, kv_connector="tcp") as cluster,
        _prefill_behind_wires(cluster, folder) as wires,
    ):
        shares = [0.0]
        while shares[-1] <= MOST_OF_IT and len(shares) <= PROMPTS:
            shares.append(await _early_share(cluster, wires, len(shares)))
        await cluster.blocks_come_back()
    assert shares[-1] > MOST_OF_IT, shares


async def _early_share(cluster: Running, wires: Wires, number: int) -> float:
    """Of a prompt's KV, how much had passed when its first token came; 0: it never passed."""
    before, seen = wires.passed[DATA], list[int]()
    asked = prompt(LENGTH, number)
    async with aclosing(chunks(cluster.session, cluster.url, asked, 4)) as coming:
        async for chunk in coming:
            if chunk["choices"]:
                seen.append(wires.passed[DATA])
    whole = wires.passed[DATA] - before
    return (seen[0] - before) / whole if whole >= LEAST_BYTES else 0.0


@asynccontextmanager
async def _prefill_behind_wires(cluster: Running, folder: Path) -> AsyncGenerator[Wires]:
    facts = cluster.cluster.proxy.facts
    assert facts is not None
    wires = Wires(random.Random(0))
    show = cluster.lines.append
    node = Victim(
        "prefill-behind",
        "prefill",
        folder,
        facts["discovery_address"],
        lambda name, line: show(f"{name} | {line}"),
        FLAGS,
    )
    async with aclosing(wires), asyncio.TaskGroup() as group:
        tasks = [group.create_task(node.run()), group.create_task(follow(wires, [node]))]
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await _is_known(cluster):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await wires.listen(node.pids())  # its last port may be newer than the last look
            yield wires
        finally:
            for task in tasks:
                task.cancel()


async def _is_known(cluster: Running) -> bool:
    """Whether the proxy knows it, and can reach it."""
    for node in await cluster.nodes():
        if node["role"] == "prefill":
            try:
                async with cluster.session.get(f"http://{node['http_address']}/health") as said:
                    return said.status == 200
            except aiohttp.ClientConnectionError:
                return False
    return False
