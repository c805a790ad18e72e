"""`python -m bench`: requests per second and time to first token of a split cluster."""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from pathlib import Path

import torch

from bench.checkpoint import Shape, write_checkpoint
from bench.cpu import family_seconds
from bench.load import Outcome, Work, percentile, run_load
from deploy.config import UpConfig
from deploy.up import Cluster

MODEL = "random-llama"
WARM_UP = 16


def main() -> None:
    """Make a checkpoint, start a cluster, measure it a few times, and print a table."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), Shape(), dtype=torch.bfloat16)
        config = UpConfig(
            model=folder,
            served_model_name=(MODEL,),
            port=0,
            enable_prefix_caching=False,
            kv_connector=options.kv_connector,
            log_level="warning",
        )
        asyncio.run(_measure(config, options.runs, Work(requests=options.requests)))


async def _measure(config: UpConfig, runs: int, work: Work) -> None:
    cluster = Cluster(config, show=lambda line: print(line, file=sys.stderr))  # noqa: T201
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.run())
        url = await cluster.ready
        await run_load(url, MODEL, Work(requests=WARM_UP, seed=-1))
        outcomes = [await _one_run(cluster, url, work, number) for number in range(runs)]
        cluster.stop()
    rates = [outcome.requests_per_s for outcome in outcomes]
    firsts = [percentile(outcome.first_token, 0.5) for outcome in outcomes]
    _say(
        f"median of {runs} runs: {statistics.median(rates):.1f} requests/s, "
        f"time to first token p50 {statistics.median(firsts) * 1000:.1f} ms"
    )


async def _one_run(cluster: Cluster, url: str, work: Work, number: int) -> Outcome:
    family = _family(cluster)
    before = family_seconds(family)
    outcome = await run_load(url, MODEL, Work(work.requests, seed=number))
    after = family_seconds(family)
    spent = {name: after[name] - before[name] for name in after}
    _report(number, outcome, spent)
    return outcome


def _family(cluster: Cluster) -> dict[str, int]:
    running = {child.name: child.process for child in (cluster.proxy, *cluster.nodes)}
    pids = {name: process.pid for name, process in running.items() if process}
    return {"load generator": os.getpid(), **pids}


def _report(number: int, outcome: Outcome, spent: dict[str, float]) -> None:
    first, between = outcome.first_token, outcome.between_tokens
    _say(
        f"run {number + 1}: {outcome.requests_per_s:.1f} requests/s; first token "
        f"p50 {percentile(first, 0.5) * 1000:.1f} p99 {percentile(first, 0.99) * 1000:.1f} ms; "
        f"between tokens p50 {percentile(between, 0.5) * 1000:.1f} "
        f"p99 {percentile(between, 0.99) * 1000:.1f} ms"
    )
    for name, times in outcome.stages.items():
        p50, p99 = percentile(times, 0.5) * 1000, percentile(times, 0.99) * 1000
        _say(f"    {name:20} p50 {p50:6.1f} p99 {p99:6.1f} ms")
    for name, seconds in spent.items():
        share, each_ms = seconds / outcome.seconds, seconds / len(first) * 1000
        _say(f"    {name:20} {share:5.0%} of a core, {each_ms:5.1f} ms for each request")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--kv-connector", choices=("nixl", "tcp"), default="nixl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
