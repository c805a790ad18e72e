"""`python -m bench.books`: what scheduling costs, and what reserving blocks for growth saves.

The first table is the time of one step's `schedule` and `commit`, including the publishing of
blocks, for each decoding sequence; no model runs. With KV events, they are taken and encoded in
it, too: for the engine's HTTP server and by it. The second runs the same random load, in
steps, with no blocks kept free for growth, with enough for all of it, and with the learned
share: preemptions, tokens computed again because of them, and steps until the end.
"""

import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from engine.request import Request, RequestId, Sampling
from engine.scheduling.cache_log import CacheLog
from engine.scheduling.chunk import SampledTokens
from engine.scheduling.drafting import Drafter
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.prompt_lookup import NgramDrafter
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.scheduling.sequence_manager import Limits, SequenceManager
from engine.scheduling.watermark import Watermark
from engine.settings import SpeculativeConfig
from node.ipc import NO_LOAD, EngineOutputs, encode
from node.kv_events.encoding import EventEncoder

DECODES = (8, 64, 256)
PROMPT, STEPS, BLOCK = 64, 400, 16
VOCABULARY = 32_000
REQUESTS, BLOCKS, SEATS, BATCH = 400, 400, 64, 256
LIMIT, MEAN_ANSWER = 512, 96
MICRO = 1e6


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The results of one load."""

    steps: int
    preemptions: int
    again: int
    used: float


def main() -> None:
    """Print both tables."""
    for count in DECODES:
        plain, drafting = (books_us(count, drafter) for drafter in (None, _drafter()))
        told = books_us(count, events=EventEncoder(BLOCK))
        more = f"{drafting:.2f} with drafts, {told:.2f} with KV events"
        _say(f"{count:3} decode: {plain:.2f} us a sequence and step, {more}")
    for name, growth in (
        ("nothing kept free", Watermark(0.0, learns=False)),
        ("all kept free", Watermark(1.0, learns=False)),
        ("a learned share", Watermark()),
    ):
        one = load(growth)
        again = f"{one.preemptions} preemptions, {one.again} tokens again"
        _say(f"{name:17}: {one.steps} steps, {again}, {one.used:.0%} of blocks used")


def books_us(
    count: int, drafter: Drafter | None = None, events: EventEncoder | None = None
) -> float:
    """Mean microseconds for each of `count` sequences in a step in which all decode.

    With a drafter their answers are random, so that it searches and finds almost nothing.
    """
    room = SequenceManager(KvManager(count * 64, BLOCK), Limits(2 * count + PROMPT, count))
    room.kv.log = CacheLog(BLOCK) if events else None
    scheduler, times = Scheduler(room, drafter), list[float]()
    for number in range(count):
        scheduler.add(_sequence(number, PROMPT, STEPS + count))
    while len(times) < STEPS:
        begin = time.perf_counter()
        scheduler.schedule()
        between = time.perf_counter()
        drawn = {name: SampledTokens(tokens) for name, tokens in _draw(scheduler)}
        resumed = time.perf_counter()
        result = scheduler.commit(drawn)
        if events and (told := room.kv.take_log()):
            encode(EngineOutputs([], NO_LOAD, cache_events=tuple(told)))
            events.encode(begin, told)
        if len(result.sampled) == count:
            times.append(time.perf_counter() - resumed + between - begin)
    return statistics.fmean(times) / count * MICRO


def load(growth: Watermark) -> LoadRun:
    """Run a load whose requests arrive at once; few answers reach their limit."""
    chance = random.Random(1)
    room = SequenceManager(
        KvManager(BLOCKS, BLOCK, prefix_cache=False), Limits(BATCH, SEATS), growth
    )
    scheduler, ends, used = Scheduler(room), dict[RequestId, int](), list[float]()
    least = 0
    for number in range(REQUESTS):
        length = chance.randint(16, 256)
        seq = _sequence(number, length, LIMIT)
        answer = min(LIMIT, 1 + int(chance.expovariate(1 / MEAN_ANSWER)))
        ends[seq.request_id] = length + answer
        least += length + answer - 1
        scheduler.add(seq)
    steps = computed = 0
    while room.known:
        scheduler.schedule()
        computed += scheduler.commit(
            {n: SampledTokens(t) for n, t in _draw(scheduler)}
        ).num_tokens
        steps += 1
        used.append(1 - room.kv.free_blocks / BLOCKS)
        for seq in [
            one for one in room.running.values() if len(one.tokens) >= ends[one.request_id]
        ]:
            scheduler.remove(seq.request_id)  # as on a stop string
    return LoadRun(steps, room.preemptions, computed - least, statistics.mean(used))


def _draw(scheduler: Scheduler) -> Iterator[tuple[RequestId, list[int]]]:
    for chunk in scheduler.batch:
        if chunk.samples:
            tokens = [random.randrange(VOCABULARY) for _ in range(len(chunk.drafts) + 1)]
            yield chunk.seq.request_id, tokens


def _sequence(number: int, length: int, answer: int) -> Sequence:
    prompt = tuple(random.randrange(VOCABULARY) for _ in range(length))
    return Sequence(Request(RequestId(str(number)), prompt, Sampling(answer)))


def _drafter() -> Drafter:
    return NgramDrafter(SpeculativeConfig())


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
