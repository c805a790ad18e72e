"""`python -m bench.handover`: one prompt at a time, split over two nodes and on one alone.

Two clusters get the same prompts in turn: one with a prefill and a decode node, and one with a
single node that does both. Each engine has one thread, on its own core if there are enough;
proxies and HTTP servers run wherever the system schedules them.

The targets: the split cluster's first token comes within 5% plus one HTTP hop of the other's,
and the time from its first to its second token is longer by at most one decode step.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import aiohttp
import cyclopts

from bench.cpu import children
from bench.load import Outcome, Workload, run_load
from deploy.config import UpConfig
from deploy.up import LocalCluster

MODEL = "bench"
SPARE = 64  # tokens of context beyond prompt and answer
MILLI = 1e3
WARM_UP = 3
HOPS = 50
ALLOWED = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is asked."""

    shape: Literal["tiny", "0.5b"] = "0.5b"
    """The model, of random weights."""
    prompt_tokens: int = 2000
    """Length of each prompt; all are different."""
    output_tokens: int = 16
    """Length of each answer."""
    runs: int = 15
    """Prompts for each side."""
    kv_connector: Literal["nixl", "tcp"] = "nixl"
    """How KV travels."""
    max_num_batched_tokens: int | None = None
    """Most tokens in one batch. Default: the nodes'."""


@dataclass(slots=True)
class ClusterTimes:
    """Times of one cluster, in seconds, one for each answer."""

    name: str
    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)

    def book(self, answer: Outcome) -> None:
        """Record one answer of at least three tokens."""
        self.first += answer.first_token
        self.second.append(answer.between_tokens[0])
        self.later.append(statistics.median(answer.between_tokens[1:]))
        for name, seconds in answer.stages.items():
            self.stages.setdefault(name, []).extend(seconds)

    def __str__(self) -> str:
        told = {"first token": self.first, "second after it": self.second, "step": self.later}
        return "; ".join(f"{name} {_spread(times)}" for name, times in told.items())


@dataclass(frozen=True, slots=True)
class HandoverComparison:
    """The split cluster compared with the other; medians, in seconds."""

    first: float
    first_allowed: float
    second: float
    second_allowed: float

    @classmethod
    def of(cls, split: ClusterTimes, alone: ClusterTimes, hop: float) -> "HandoverComparison":
        """The split cluster's times, and its targets."""
        first, second = statistics.median(alone.first), statistics.median(alone.second)
        return cls(
            statistics.median(split.first),
            first * ALLOWED + hop,
            statistics.median(split.second),
            second + statistics.median(alone.later),
        )

    def __str__(self) -> str:
        lines = (
            ("first token", self.first, self.first_allowed),
            ("second after it", self.second, self.second_allowed),
        )
        return "\n".join(
            f"{name}: {took * MILLI:.1f} ms split, {most * MILLI:.1f} ms asked for: "
            + ("reached" if took <= most else "not reached")
            for name, took, most in lines
        )


def main(options: Annotated[Options, cyclopts.Parameter(name="*")] | None = None) -> None:
    """Ask both clusters in turn, and compare."""
    options = options or Options()
    if options.output_tokens < 3:
        raise SystemExit("--output-tokens must be at least 3: two, and a step after them")
    import torch  # slow to import, and not needed for --help

    from bench.checkpoint import write_checkpoint
    from bench.engine.work import SHAPES

    with tempfile.TemporaryDirectory() as folder:
        shape = SHAPES[options.shape]
        write_checkpoint(Path(folder), shape, dtype=torch.bfloat16)
        asyncio.run(_compare(options, folder, shape.vocab_size))


async def _compare(options: Options, folder: str, vocabulary: int) -> None:
    _say(f"load of the machine before: {os.getloadavg()[0]:.2f}")
    split = LocalCluster(_cluster(options, folder, prefill=1), show=_tell)
    alone = LocalCluster(_cluster(options, folder, prefill=0), show=_tell)
    async with asyncio.TaskGroup() as tasks:
        for cluster in (split, alone):
            tasks.create_task(cluster.run())
        urls = {"split": await split.ready, "alone": await alone.ready}
        for cluster in (split, alone):
            _pin(cluster)
        sides = [ClusterTimes(name) for name in urls]
        for number in range(-WARM_UP, options.runs):
            work = Workload(
                1, 1, options.prompt_tokens, options.output_tokens, vocabulary, number
            )
            for side in sides:
                answer = await run_load(urls[side.name], MODEL, work)
                if number >= 0:
                    side.book(answer)
        hop = await _hop(urls["split"])
        for cluster in (split, alone):
            cluster.stop()
    _report(sides, hop)


def _cluster(options: Options, folder: str, prefill: int) -> UpConfig:
    return UpConfig(
        model=folder,
        served_model_name=(MODEL,),
        port=0,
        prefill=prefill,
        threads=1,
        max_num_seqs=4,
        max_model_len=options.prompt_tokens + options.output_tokens + SPARE,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=False,
        kv_connector=options.kv_connector,
        log_level="warning",
    )


def _pin(cluster: LocalCluster) -> None:
    """Pin each engine, with all its threads, to one core: the first node's to the first."""
    cores = sorted(os.sched_getaffinity(0))
    for index, node in enumerate(cluster.nodes):
        assert node.process is not None, "the cluster is ready"
        for engine in children(node.process.pid):
            _keep_on(cores[index % len(cores)], _threads(engine))


def _threads(pid: int) -> Iterable[int]:
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]


def _keep_on(core: int, threads: Iterable[int]) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(thread, {core})


async def _hop(url: str) -> float:
    """Median seconds of the shortest request, over an open connection."""
    times = list[float]()
    async with aiohttp.ClientSession(url) as session:
        for _ in range(HOPS):
            since = time.perf_counter()
            async with session.get("/health") as answer:
                await answer.read()
            times.append(time.perf_counter() - since)
    return statistics.median(times)


def _report(sides: Sequence[ClusterTimes], hop: float) -> None:
    for side in sides:
        _say(f"{side.name}: {side}")
        for name, seconds in side.stages.items():
            _say(f"    {name:10} {_spread(seconds)}")
    _say(f"one HTTP hop: {hop * MILLI:.2f} ms")
    split, alone = sides
    _say(str(HandoverComparison.of(split, alone, hop)))
    _say(f"load of the machine after: {os.getloadavg()[0]:.2f}")


def _spread(seconds: Sequence[float]) -> str:
    middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return f"{middle * MILLI:.2f} ms ({least * MILLI:.2f} to {most * MILLI:.2f})"


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    cyclopts.run(main)
