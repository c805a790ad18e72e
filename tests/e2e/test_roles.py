"""A live node changes its role, there and back, while streams run; nobody notices."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from discovery.registration import Role
from node.engine_job import DECODE_NICENESS
from tests.e2e.cluster import Running, running, tokens_of
from tests.fakes.driver import prompt
from tests.fakes.waiting import LOOK_AGAIN_S, comes_true

KEY = {"X-API-Key": "boss"}
OPERATED: dict[str, Any] = {"admin_api_key": "boss", "cluster_key": "orders-are-signed"}
PROMPTS = [prompt(30 + 11 * number, number) for number in range(6)]
ANSWER, TURNS, PATIENCE_S = 60, 4, 120.0


def address_of(cluster: Running, name: str) -> str:
    facts = cluster.child(name).facts
    assert facts is not None
    return facts["http_address"]


async def operate(cluster: Running, address: str, what: str, **wish: object) -> dict[str, Any]:
    url = f"{cluster.url}/instances/{address}/{what}"
    async with cluster.session.post(url, json=wish, headers=KEY) as answer:
        said: dict[str, Any] = await answer.json()
        assert answer.status in (200, 202), said
        return said


async def standing(cluster: Running, address: str) -> tuple[str, str]:
    node = next(one for one in await cluster.nodes() if one["http_address"] == address)
    return node["role"], node["state"]


async def is_so(cluster: Running, address: str, role: str, state: str = "ready") -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await standing(cluster, address) != (role, state):
            continue


async def gives_way(engine: int, niceness: int) -> None:
    """It was told before the proxy was, and hears it between two steps."""
    nice = partial(os.getpriority, os.PRIO_PROCESS, engine)
    await comes_true(lambda: nice() == niceness, look_s=LOOK_AGAIN_S)


async def answers(cluster: Running) -> AsyncGenerator[list[int]]:
    """One after the other, each compared with what it was before anything happened."""
    number = 0
    while True:
        number = (number + 1) % len(PROMPTS)
        said = await cluster.complete(PROMPTS[number], max_tokens=ANSWER)
        yield [number, *tokens_of(said)]


@pytest.mark.parametrize("drain_timeout_s", [0.0, 30.0])
async def test_a_role_flips_under_load_and_no_token_differs(
    tiny: Path, drain_timeout_s: float
) -> None:
    settings = {**OPERATED, "drain_timeout_s": drain_timeout_s}
    async with running(tiny, prefill=2, decode=1, **settings) as cluster:
        asked = [cluster.complete(one, max_tokens=ANSWER) for one in PROMPTS]
        undisturbed = [tokens_of(one) for one in await asyncio.gather(*asked)]
        over, more = asyncio.Event(), asyncio.Semaphore(0)

        async def ask() -> None:
            async with aclosing(answers(cluster)) as reading:
                async for number, *tokens in reading:
                    assert tokens == undisturbed[number]
                    more.release()
                    if over.is_set():
                        return

        address = address_of(cluster, "prefill-1")
        engine = cluster.engine("prefill-1")
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(6):
                tasks.create_task(ask())
            for turn in range(TURNS):
                role = Role.PREFILL if turn % 2 else Role.DECODE
                await operate(cluster, address, "role", role=role.name.lower())
                await is_so(cluster, address, role.name.lower())
                if role is Role.DECODE or os.geteuid() == 0:  # to give way less is for root
                    wanted = ours + (DECODE_NICENESS if role is Role.DECODE else 0)
                    await gives_way(engine, min(19, wanted))
                for _ in range(12):
                    await asyncio.wait_for(more.acquire(), PATIENCE_S)
            over.set()
        assert cluster.engine("prefill-1") == engine, "nothing was loaded anew"
        await cluster.blocks_come_back()
    assert not any("Traceback" in line for line in cluster.lines)


async def test_a_drained_node_is_idle_and_serves_again_when_undrained(tiny: Path) -> None:
    settings = {**OPERATED, "policy": "round_robin"}
    async with running(tiny, prefill=1, decode=2, **settings) as cluster:
        address = address_of(cluster, "decode-1")
        before = await cluster.complete(PROMPTS[0], max_tokens=ANSWER)
        await operate(cluster, address, "drain")
        assert await standing(cluster, address) == ("decode", "draining")
        generated = "pdserve_generation_tokens_total"
        idle = (await cluster.metric(generated))[address]
        for _ in range(4):
            said = await cluster.complete(PROMPTS[0], max_tokens=ANSWER)
            assert tokens_of(said) == tokens_of(before)
        assert (await cluster.metric(generated))[address] == idle
        await operate(cluster, address, "undrain")
        for _ in range(2):
            await cluster.complete(PROMPTS[0], max_tokens=ANSWER)
        assert (await cluster.metric(generated))[address] > idle


async def test_a_node_that_is_started_anew_is_what_its_command_line_says(tiny: Path) -> None:
    """Whatever an operator had said to the process before it: its role, and to take no work."""
    settings = {**OPERATED, "drain_timeout_s": 0.0}
    async with running(tiny, prefill=2, decode=1, **settings) as cluster:
        before = tokens_of(await cluster.complete(PROMPTS[0], max_tokens=ANSWER))
        address = address_of(cluster, "prefill-1")
        await operate(cluster, address, "role", role="decode")
        await is_so(cluster, address, "decode")
        await operate(cluster, address, "drain")
        await is_so(cluster, address, "decode", "draining")
        os.kill(cluster.door("prefill-1"), signal.SIGKILL)
        kinds = [("decode", "ready"), ("prefill", "ready"), ("prefill", "ready")]
        async with asyncio.timeout(PATIENCE_S):  # perhaps at another port
            while sorted((one["role"], one["state"]) for one in await cluster.nodes()) != kinds:
                continue
        assert tokens_of(await cluster.complete(PROMPTS[0], max_tokens=ANSWER)) == before
