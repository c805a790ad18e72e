"""How long other requests wait while one call with many prompts begins, and while its client
leaves.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from api.text_requests import MOST_CALLS
from bench.proxy.answers import Script
from bench.proxy.cluster import NAME, Bench
from bench.proxy.figures import MILLI

PAUSE_S = 0.005  # between two questions
ANSWER_TOKENS, STEP_S = 4, 0.02
SILENT_STEP_S = 0.5
DATA = b"data: "
IN_FLIGHT = "pdserve_proxy_requests_in_flight"


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one call took, and the longest that somebody else waited for an answer meanwhile."""

    took_s: float
    waited_s: float

    def __str__(self) -> str:
        return f"took {self.took_s:.1f} s; others waited up to {self.waited_s * MILLI:.0f} ms"


async def largest_batch(bench: Bench) -> BatchResult:
    """One completion with as many prompts as are allowed; others ask /health all the time."""
    await bench.set_script(Script(STEP_S, 1))
    async with _session(bench) as session, _others_asking(session) as waits:
        since = time.perf_counter()
        async with session.post("/v1/completions", json=_body()) as answer:
            answer.raise_for_status()
            await answer.read()
        took = time.perf_counter() - since
    return BatchResult(took, max(waits))


async def abandoned_batch(bench: Bench) -> BatchResult:
    """The same call, whose client leaves once all answers have begun: what its end takes."""
    await bench.set_script(Script(SILENT_STEP_S, 0))  # no tokens behind the first
    async with _session(bench) as session:
        answer = await session.post("/v1/completions", json={**_body(), "stream": True})
        begun = set[int]()
        while len(begun) < MOST_CALLS:
            line = await answer.content.readline()
            if line.startswith(DATA):
                begun.add(msgspec.json.decode(line.removeprefix(DATA))["choices"][0]["index"])
        async with _others_asking(session) as waits:
            since = time.perf_counter()
            answer.close()
            while await _in_flight(session):  # noqa: ASYNC110  another process counts
                await asyncio.sleep(PAUSE_S)
            took = time.perf_counter() - since
    return BatchResult(took, max(waits))


def _session(bench: Bench) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(f"http://{bench.address}")


@asynccontextmanager
async def _others_asking(session: aiohttp.ClientSession) -> AsyncIterator[list[float]]:
    """What they wait for each answer while the context is open, to the last one's."""
    waits, enough = list[float](), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_ask_health(session, waits, enough))
        try:
            yield waits
        finally:
            enough.set()


async def _ask_health(
    session: aiohttp.ClientSession, waits: list[float], enough: asyncio.Event
) -> None:
    while not enough.is_set():
        since = time.perf_counter()
        async with session.get("/health") as answer:
            await answer.read()
        waits.append(time.perf_counter() - since)
        await asyncio.sleep(PAUSE_S)


async def _in_flight(session: aiohttp.ClientSession) -> float:
    async with session.get("/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return float(next(one for one in lines if one.startswith(IN_FLIGHT)).split()[-1])


def _body() -> dict[str, object]:
    prompts = [f"What is {number}?" for number in range(MOST_CALLS)]
    sampling = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
    return {"model": NAME, "prompt": prompts, **sampling}
