"""`python -m bench.proxy`: what one proxy costs, before nodes that answer from a script.

For each number of streams three things are asked in turn, several times: the proxy (chats, as
text, through a prefill and a decode node), a scripted node by itself, a bare relay of aiohttp
before it, and one of two legs. Answers of two lengths tell the CPU time of a request from that
of a token. Tokenizing is measured by itself, as often as requests come, and taken off the
request's. What libraries take for empty answers stands beside it (`bench/proxy/floors.py`).
Time to first token is from the long answers, beyond the node's own. All processes share all
cores, as the system has it; with `--apart` the proxy and the relays have one for themselves.
At last one call has as many prompts as it may have, and others wait meanwhile: until it is
answered, or while its client leaves.

Asked for: 60 us of CPU for each token with its detokenizing and JSON, 500 us for each request
beyond tokenizing, 2 ms more to the first token at 64 streams (p50); 1,000 nodes: a plan in
under 100 us, heartbeats under 5% of a core.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from typing import Annotated

import cyclopts

from api.text_requests import MOST_CALLS
from bench.proxy.answers import LoadResult
from bench.proxy.batches import abandoned_batch, largest_batch
from bench.proxy.cluster import Bench, open_bench
from bench.proxy.crowd import heartbeats, plans
from bench.proxy.figures import (
    MICRO,
    MILLI,
    MOST_ADDED_S,
    MOST_REQUEST_S,
    MOST_TOKEN_S,
    CpuCosts,
    FirstTokenTimes,
    WindowWork,
    verdict,
)
from bench.proxy.floors import floors
from bench.proxy.places import CoreSets

SHORT, LONG = 8, 128  # tokens of an answer
SHORT_RATE = 100.0  # requests in a second, of short answers
STEPS = {1: 0.002, 64: 0.02, 512: 0.1}  # seconds, by streams: less would be too much for a core
USUAL_RATE = 4000.0  # tokens in a second, for other numbers of streams
JUDGED = 64
MOST_PLAN_S, MOST_BEATS = 100e-6, 0.05
RELAYS = ("relay", "legs")
COPYING = ("proxy", *RELAYS)
KINDS = ("node", *COPYING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure; all of it takes some minutes."""

    streams: tuple[int, ...] = (1, 64, 512)
    """How many are answered at once."""
    runs: int = 3
    """How often each is measured, in turn."""
    seconds: float = 4.0
    """Length of each measurement."""
    burst: int = 1
    """Frames that nodes write at once."""
    crowd: int = 1000
    """Nodes that are registered for the last part; 0 leaves it out."""
    apart: bool = False
    """Whether the proxy has a core for itself: it waits for nobody, but wakes others."""


def main(options: Annotated[Options, cyclopts.Parameter(name="*")] | None = None) -> None:
    """Measure, print, judge."""
    asyncio.run(_measure(options or Options()))


async def _measure(options: Options) -> None:
    _say(f"load of the machine before: {os.getloadavg()[0]:.2f}")
    places = CoreSets.apart() if options.apart else CoreSets.shared()
    _say(f"cores of the proxy: {sorted(places.measured)}, of all else: {sorted(places.others)}")
    async with open_bench(places) as bench:
        alone, tokenizing = bench.tokenizing_s(), bench.tokenizing_s(1 / SHORT_RATE)
        _say(
            f"tokenizing a chat of {bench.prompt_tokens} tokens: {alone * MICRO:.0f} us in a "
            f"row, {tokenizing * MICRO:.0f} us as often as requests come"
        )
        idle = await bench.idle()
        _say(f"idle: {idle:.2%} of a core")
        for name, seconds in await floors(bench.body):
            _say(f"{name}, an empty answer: {seconds * MICRO:.0f} us for each request")
        for streams in options.streams:
            _say(f"{streams} streams, bursts of {options.burst}:")
            await _level(bench, options, streams, tokenizing)
        for _ in range(options.runs):
            _say(f"a call with {MOST_CALLS} prompts: {await largest_batch(bench)}")
            _say(f"the end of one whose client leaves: {await abandoned_batch(bench)}")
    if options.crowd:
        await _crowd(options.crowd)
    _say(f"load of the machine after: {os.getloadavg()[0]:.2f}")


async def _level(bench: Bench, options: Options, streams: int, tokenizing: float) -> None:
    """All kinds in turn, as what else goes on here comes and goes."""
    short = {kind: list[LoadResult]() for kind in KINDS}
    long = {kind: list[LoadResult]() for kind in KINDS}
    for _ in range(options.runs):
        for kind in KINDS:
            for length, said in ((SHORT, short), (LONG, long)):
                step = step_s(streams, length) * options.burst
                load = streams, length, step, options.burst, options.seconds
                said[kind].append(await bench.ask(kind, *load))
    firsts = {kind: FirstTokenTimes.of(long[kind]) for kind in KINDS}
    costs = {kind: _costs(bench, kind, short[kind], long[kind]) for kind in COPYING}
    _say(f"    proxy  {costs['proxy']}, tokenizing included")
    _say(f"    relay  {costs['relay']}")
    _say(f"    legs   {costs['legs']}: a relay of two legs")
    for kind in KINDS:
        _say(f"    {kind:5}  first token {firsts[kind]}")
    added = firsts["proxy"].beyond(firsts["node"])
    _say(f"    added by the proxy      {added}")
    _say(f"    added by the relay      {firsts['relay'].beyond(firsts['node'])}")
    _say_writes(long["proxy"], options.burst)
    request_s = costs["proxy"].request_s - tokenizing
    _say("    " + verdict("CPU for a token", costs["proxy"].token_s, MOST_TOKEN_S, MICRO, "us"))
    _say("    " + verdict("CPU for a request", request_s, MOST_REQUEST_S, MICRO, "us"))
    if streams == JUDGED:
        _say("    " + verdict("added, p50", added.p50, MOST_ADDED_S, MILLI, "ms"))


def _costs(
    bench: Bench, kind: str, short: list[LoadResult], long: list[LoadResult]
) -> CpuCosts:
    """A bare relay's tokens are its events: it knows no others."""
    pid, by_event = bench.pid(kind), kind in RELAYS
    pairs = zip(short, long, strict=True)
    return CpuCosts.median(
        [
            CpuCosts.of(
                WindowWork.of(a, pid, by_event=by_event),
                WindowWork.of(b, pid, by_event=by_event),
            )
            for a, b in pairs
        ]
    )


def _say_writes(long: list[LoadResult], burst: int) -> None:
    tokens, events = sum(one.tokens for one in long), sum(one.events for one in long)
    reads, seconds = sum(one.reads for one in long), sum(one.seconds for one in long)
    busy = sum(sum(one.cpu_s.values()) for one in long) / seconds
    own = sum(one.own_cpu_s for one in long) / seconds
    _say(
        f"    {tokens / seconds:.0f} tokens/s: {reads * burst / tokens:.2f} reads and "
        f"{events * burst / tokens:.2f} events for each burst; "
        f"proxy {busy:.0%}, load generator {own:.0%} of a core"
    )


def step_s(streams: int, length: int) -> float:
    """Of short answers there are as many requests for any number of streams."""
    if length == SHORT:
        return streams / (length * SHORT_RATE)
    return STEPS.get(streams, streams / USUAL_RATE)


async def _crowd(count: int) -> None:
    _say(f"{count} nodes:")
    for name, seconds in plans(count):
        _say("    " + verdict(name, seconds, MOST_PLAN_S, MICRO, "us"))
    share = await heartbeats(count)
    _say("    " + verdict("heartbeats, of a core", share, MOST_BEATS, 100, "%"))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    cyclopts.run(main)
