"""Whatever dies, every answer is whole and the same, and nothing is left behind."""

import asyncio
import os
import random
import re
import signal
from collections.abc import Sequence
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path

import aiohttp

from bench.cpu import children
from tests.e2e.cluster import MODEL, Running, gone, launched, running, tokens_of
from tests.e2e.streams import chunks
from tests.fakes.driver import prompt
from tests.fakes.lines import PATIENCE_S

STREAMS = 16
ANSWER = 120
PROMPTS = [prompt(10 + 7 * number, number) for number in range(STREAMS)]
CLIENTS, AT_ONCE = 200, 25
CROWD, MANY = 24, 100


async def test_streams_survive_the_death_of_a_decode_and_of_a_prefill_node(tiny: Path) -> None:
    async with running(tiny, prefill=2, decode=2, cluster_key="signed") as cluster:
        undisturbed = await _answers(cluster, halfway=None)
        for victim in ("decode-0", "prefill-0"):
            pids = [cluster.door(victim), cluster.engine(victim)]
            assert await _answers(cluster, halfway=pids) == undisturbed
            await cluster.blocks_come_back()
    assert all(len(answer) == ANSWER for answer in undisturbed)


async def test_a_node_that_is_told_to_end_sends_its_streams_elsewhere(tiny: Path) -> None:
    """At once, as it is given no time."""
    async with running(tiny, prefill=2, decode=2, drain_timeout_s=0.0) as cluster:
        undisturbed = await _answers(cluster, halfway=None)
        for ending in ("decode-0", "prefill-0"):
            pids = [cluster.door(ending)]
            assert await _answers(cluster, pids, signal.SIGTERM) == undisturbed
            await cluster.blocks_come_back()


async def test_a_node_whose_engine_dies_is_gone_and_comes_back(tiny: Path) -> None:
    async with running(tiny) as cluster:
        for name in ("prefill-0", "decode-0"):
            door, engine = cluster.door(name), cluster.engine(name)
            os.kill(engine, signal.SIGKILL)
            await gone(door)
            answer = await cluster.complete(PROMPTS[0], max_tokens=4)
            assert len(tokens_of(answer)) == 4
        ends = [line for line in cluster.lines if "node ends: the engine process" in line]
        assert len(ends) == 2
        assert not any("Traceback" in line for line in cluster.lines)


async def test_a_node_whose_engine_dies_in_a_crowd_says_so_in_a_line(tiny: Path) -> None:
    """Requests that come while it ends are begun by nobody: their tasks would have no end."""
    async with running(tiny, prefill=0, decode=2) as cluster:
        facts, door = cluster.child("decode-0").facts, cluster.door("decode-0")
        assert facts
        url = f"http://{facts['http_address']}/v1/completions"
        asked = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 2}
        over, answers, many = asyncio.Event(), count(1), asyncio.Event()

        async def hammer() -> None:
            async with aiohttp.ClientSession() as session:
                while not over.is_set():
                    with suppress(aiohttp.ClientError):
                        async with session.post(url, json=asked) as answer:
                            await answer.read()
                        if next(answers) > MANY:
                            many.set()

        async with asyncio.TaskGroup() as crowd:
            for _ in range(CROWD):
                crowd.create_task(hammer())
            await many.wait()
            os.kill(cluster.engine("decode-0"), signal.SIGKILL)
            await gone(door)
            over.set()
    bad = re.compile(r"Traceback|Task was destroyed")
    assert not [line for line in cluster.lines if bad.search(line)]


async def test_an_engine_whose_door_dies_is_gone(tiny: Path) -> None:
    async with running(tiny) as cluster:
        door, engine = cluster.door("decode-0"), cluster.engine("decode-0")
        os.kill(door, signal.SIGKILL)
        await gone(engine)
        answer = await cluster.complete(PROMPTS[0], max_tokens=4)
        assert len(tokens_of(answer)) == 4


async def test_nothing_outlives_the_launcher(tiny: Path) -> None:
    async with launched(tiny) as (launcher, _):
        started = list(children(launcher.pid))
        started += [pid for one in started for pid in children(one)]
        assert len(started) == 5  # a proxy, two doors, two engines
        launcher.kill()
        await asyncio.gather(*(gone(pid) for pid in started))


async def test_the_launcher_ends_what_it_started_and_says_zero(tiny: Path) -> None:
    async with launched(tiny) as (launcher, _):
        started = list(children(launcher.pid))
        launcher.terminate()
        assert await asyncio.wait_for(launcher.wait(), PATIENCE_S) == 0
        await asyncio.gather(*(gone(pid) for pid in started))


async def test_clients_that_leave_leave_nothing_behind(tiny: Path) -> None:
    async with running(tiny, prefill=1, decode=2) as cluster:
        chance, seats = random.Random(0), asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(_leave(cluster, seats, chance) for _ in range(CLIENTS)))
        await cluster.blocks_come_back()
    loud = [line for line in cluster.lines if re.search(r" (ERROR|CRITICAL) |Traceback", line)]
    assert not loud


async def _answers(
    cluster: Running, halfway: Sequence[int] | None, how: signal.Signals = signal.SIGKILL
) -> list[list[int]]:
    """All streams at once; half of the way, these processes get a signal."""
    reached = asyncio.Barrier(STREAMS + 1)
    reading = [asyncio.create_task(_stream(cluster, asked, reached)) for asked in PROMPTS]
    await reached.wait()
    for pid in halfway or ():
        os.kill(pid, how)
    return await asyncio.gather(*reading)


async def _stream(
    cluster: Running, asked: Sequence[int], reached: asyncio.Barrier
) -> list[int]:
    said = list[int]()
    async with aclosing(chunks(cluster.session, cluster.url, asked, ANSWER)) as coming:
        async for chunk in coming:
            for choice in chunk["choices"]:
                before, said = len(said), said + choice.get("token_ids", [])
                if before < ANSWER // 2 <= len(said):
                    await reached.wait()
    return said


async def _leave(cluster: Running, seats: asyncio.Semaphore, chance: random.Random) -> None:
    """Ask, read up to some chunk, and hang up; some do not even wait for the first."""
    async with seats:
        patience = chance.randrange(0, 30)
        asked = prompt(chance.randrange(1, 200), chance.randrange(1000))
        async with aclosing(chunks(cluster.session, cluster.url, asked, ANSWER)) as coming:
            if patience == 0:
                with suppress(TimeoutError):  # some answers are quicker
                    await asyncio.wait_for(anext(coming), chance.random() / 100)
                return
            for _ in range(patience):
                await anext(coming, None)  # tokens that came together are one chunk
