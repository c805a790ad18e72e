"""`pdserve bench`: requests per second and time to first token, of a cluster or an endpoint."""

import asyncio
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp

from bench.answers import WrongAnswer
from bench.config import BenchConfig, base_url
from bench.cpu import family_seconds
from bench.load import Outcome, Workload, percentile, run_load
from deploy.config import UpConfig
from deploy.standard_files import say
from deploy.supervisor import ProcessFailed
from deploy.up import LocalCluster
from node.failures import first_failure

MODEL = "bench"
WARM_UP = 16
SEED_BITS = 64
Family = Callable[[], dict[str, int]]
FAILURES = (aiohttp.ClientError, WrongAnswer, ProcessFailed, TimeoutError)


def run(config: BenchConfig) -> None:
    """Measure a few times, and print a table; SystemExit with the reason if that fails."""
    try:
        if config.url is not None and config.model is not None:
            asyncio.run(_measure(config, base_url(config.url), config.model, dict))
        else:
            _own_cluster(config)
    except FAILURES as failed:
        raise SystemExit(f"pdserve bench: {failed}") from failed
    except BaseExceptionGroup as failures:
        if (first := first_failure(failures, *FAILURES)) is None:
            raise
        raise SystemExit(f"pdserve bench: {first}") from failures


def _own_cluster(config: BenchConfig) -> None:
    """Measure a cluster of the named checkpoint, or of a small one made for this."""
    if config.model is not None:
        asyncio.run(_split(config, config.model))
        return
    import torch  # slow to import, and not needed to measure an endpoint

    from bench.checkpoint import Shape, write_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        shape = replace(Shape(), vocab_size=config.vocabulary)
        write_checkpoint(Path(folder), shape, dtype=torch.bfloat16)
        asyncio.run(_split(config, folder))


async def _split(config: BenchConfig, folder: str) -> None:
    """Measure our own cluster, and the CPU time of each of its processes."""
    of_cluster = UpConfig(
        model=folder,
        served_model_name=(MODEL,),
        port=0,
        enable_prefix_caching=False,
        kv_connector=config.kv_connector,
        log_level="warning",
    )
    cluster = LocalCluster(of_cluster, show=lambda line: print(line, file=sys.stderr))  # noqa: T201
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.run())
        url = await cluster.ready
        await _measure(config, url, MODEL, lambda: _family(cluster))
        cluster.stop()


async def _measure(config: BenchConfig, url: str, model: str, family: Family) -> None:
    work = Workload(
        config.requests,
        config.concurrency,
        config.prompt_tokens,
        config.output_tokens,
        config.vocabulary,
    )
    key = next(iter(config.api_key), None)
    seed = secrets.randbits(SEED_BITS)  # the endpoint may have the prompts of earlier calls
    await run_load(url, model, replace(work, requests=WARM_UP, seed=seed), key)
    outcomes = list[Outcome]()
    for number in range(config.runs):
        of_run = replace(work, seed=seed + 1 + number)
        before = family_seconds(family())
        outcomes.append(await run_load(url, model, of_run, key))
        after = family_seconds(family())
        _report(number, outcomes[-1], {name: after[name] - before[name] for name in after})
    rates = [outcome.requests_per_s for outcome in outcomes]
    firsts = [percentile(outcome.first_token, 0.5) for outcome in outcomes]
    say(
        f"median of {config.runs} runs: {statistics.median(rates):.1f} requests/s, "
        f"time to first token p50 {statistics.median(firsts) * 1000:.1f} ms\n"
    )


def _family(cluster: LocalCluster) -> dict[str, int]:
    running = {child.name: child.process for child in (cluster.proxy, *cluster.nodes)}
    pids = {name: process.pid for name, process in running.items() if process}
    return {"load generator": os.getpid(), **pids}


def _report(number: int, outcome: Outcome, spent: dict[str, float]) -> None:
    times_of = {
        "first token": outcome.first_token,
        "per token": outcome.per_token,
        "between tokens": outcome.between_tokens,
    }
    told = "; ".join(f"{name} {_spread(times)}" for name, times in times_of.items() if times)
    say(f"run {number + 1}: {outcome.requests_per_s:.1f} requests/s; {told}\n")
    for name, times in outcome.stages.items():
        p50, p99 = percentile(times, 0.5) * 1000, percentile(times, 0.99) * 1000
        say(f"    {name:20} p50 {p50:6.1f} p99 {p99:6.1f} ms\n")
    for name, seconds in spent.items():
        share, each_ms = seconds / outcome.seconds, seconds / len(outcome.first_token) * 1000
        say(f"    {name:20} {share:5.0%} of a core, {each_ms:5.1f} ms for each request\n")


def _spread(times: Sequence[float]) -> str:
    p50, p99 = percentile(times, 0.5) * 1000, percentile(times, 0.99) * 1000
    return f"p50 {p50:.1f} p99 {p99:.1f} ms"
