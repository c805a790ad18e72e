"""Nodes whose models are shared out among several processes say what one process says."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.cpu import children
from tests.e2e.cluster import USED, Running, gone, running, tokens_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt

PROMPTS = [prompt(length) for length in (1, 16, 33, 100)]
LONGER = [(*asked, *prompt(20, seed=7)) for asked in PROMPTS]  # they begin as the others
ANSWER = 12
STREAMS, LONG = 8, 100
GONE = "rank 1 is gone"


@pytest.mark.parametrize(
    ("connector", "prefill", "decode"),
    [("nixl", 1, 2), ("nixl", 2, 1), ("nixl", 2, 2), ("tcp", 1, 2), ("tcp", 2, 1)],
)
async def test_split_is_unsplit(tiny: Path, connector: str, prefill: int, decode: int) -> None:
    """The second round finds the first one's KV in decode's cache."""
    settings: dict[str, Any] = {
        "kv_connector": connector,
        "tensor_parallel_size": prefill,
        "decode_tensor_parallel_size": decode,
        "kv_checksum": "full",
    }
    async with running(tiny, **settings) as cluster:
        layouts = await cluster.layouts()
        for prompts in (PROMPTS, LONGER):
            await cluster.split_is_unsplit(prompts, ANSWER)
        await cluster.blocks_come_back()
    sizes = {role: layout["tensor_parallel_size"] for role, layout in layouts.items()}
    assert sizes == {"prefill": prefill, "decode": decode}


@pytest.mark.parametrize(
    ("connector", "prefill", "decode"), [("nixl", 1, 2), ("tcp", 2, 1), ("tcp", 2, 2)]
)
async def test_each_rank_fetches_its_part_of_a_state(
    tmp_path: Path, connector: str, prefill: int, decode: int
) -> None:
    settings: dict[str, Any] = {
        "kv_connector": connector,
        "tensor_parallel_size": prefill,
        "decode_tensor_parallel_size": decode,
        "kv_checksum": "full",
    }
    async with running(make_checkpoint(tmp_path, "qwen3_next"), **settings) as cluster:
        layouts = await cluster.layouts()
        await cluster.split_is_unsplit(PROMPTS, ANSWER)
        await cluster.blocks_come_back()
    sizes = {role: layout["tensor_parallel_size"] for role, layout in layouts.items()}
    assert sizes == {"prefill": prefill, "decode": decode}


async def test_streams_survive_the_death_of_a_rank(tiny: Path) -> None:
    """It ends its node, and nothing of it is left; others go on with its requests."""
    async with running(tiny, prefill=1, decode=2, tensor_parallel_size=2) as cluster:
        undisturbed = await answers(cluster, ())
        for name in ("decode-0", "prefill-0"):
            door, engine = cluster.door(name), cluster.engine(name)
            (rank,) = children(engine)
            assert await answers(cluster, [rank]) == undisturbed
            await asyncio.gather(gone(engine), gone(door))
            await cluster.blocks_come_back()
    told = [line.partition("|")[0].strip() for line in cluster.lines if GONE in line]
    assert {*told} == {"decode-0", "prefill-0"}  # by one of their threads, or by two
    assert "Traceback" not in "\n".join(cluster.lines)


async def test_ranks_do_not_outlive_their_engine(tiny: Path) -> None:
    async with running(tiny, tensor_parallel_size=2) as cluster:
        engine = cluster.engine("decode-0")
        (rank,) = children(engine)
        os.kill(engine, signal.SIGKILL)
        await gone(rank)
        door = cluster.door("prefill-0")
        (rank,) = children(cluster.engine("prefill-0"))
        os.kill(door, signal.SIGKILL)
        await gone(rank)


async def test_a_rank_that_stands_still_is_noticed(tiny: Path) -> None:
    """The node is not healthy while it waits for it, then ends; the answer comes elsewhere."""
    async with running(tiny, prefill=1, decode=1, decode_tensor_parallel_size=2) as cluster:
        undisturbed = await cluster.complete(PROMPTS[2], max_tokens=ANSWER)
        door, engine = cluster.door("decode-0"), cluster.engine("decode-0")
        (rank,) = children(engine)
        os.kill(rank, signal.SIGSTOP)
        asked = asyncio.create_task(cluster.complete(PROMPTS[2], max_tokens=ANSWER))
        await gone(rank)
        await gone(engine)
        await gone(door)
        assert tokens_of(await asked) == tokens_of(undisturbed)


async def under_way(cluster: Running) -> None:
    """Until some node holds blocks; each look is a call to it."""
    while not any((await cluster.metric(USED)).values()):
        pass


async def answers(cluster: Running, victims: Sequence[int]) -> list[list[int]]:
    """All at once; in the middle of it, these processes are killed."""
    asking = [
        asyncio.create_task(cluster.complete(prompt(10 + 7 * n, n), max_tokens=LONG))
        for n in range(STREAMS)
    ]
    if victims:
        await under_way(cluster)
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    return [tokens_of(one) for one in await asyncio.gather(*asking)]
