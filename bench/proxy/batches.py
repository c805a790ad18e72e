"""How long other requests wait while one call with many prompts begins."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import aiohttp

from api.text_requests import MOST_CALLS
from bench.proxy.answers import Script
from bench.proxy.cluster import NAME, Bench
from bench.proxy.figures import MILLI

PAUSE_S = 0.005  # between two questions
ANSWER_TOKENS, STEP_S = 4, 0.02


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
    waits = list[float]()
    async with aiohttp.ClientSession(f"http://{bench.address}") as session:
        asking = asyncio.create_task(_ask_health(session, waits))
        try:
            since = time.perf_counter()
            async with session.post("/v1/completions", json=_body()) as answer:
                answer.raise_for_status()
                await answer.read()
            took = time.perf_counter() - since
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
    return BatchResult(took, max(waits))


async def _ask_health(session: aiohttp.ClientSession, waits: list[float]) -> None:
    while True:
        since = time.perf_counter()
        async with session.get("/health") as answer:
            await answer.read()
        waits.append(time.perf_counter() - since)
        await asyncio.sleep(PAUSE_S)


def _body() -> dict[str, object]:
    prompts = [f"What is {number}?" for number in range(MOST_CALLS)]
    sampling = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True, "temperature": 0}
    return {"model": NAME, "prompt": prompts, **sampling}
