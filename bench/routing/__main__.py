"""`python -m bench.routing`: policies over growing chats, and local prefill over a grid."""

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import mean, quantiles
from typing import get_args

from bench.routing.machines import Speeds
from bench.routing.simulation import Arrival, Cluster, Outcome, Simulation
from bench.routing.traces import Chats, alike
from proxy.config import LocalPrefill, Policy

SEEDS = (1, 2, 3)
PROMPTS, ANSWERS, LOADS = (128, 1024, 4096, 16384), (2, 16, 128, 512), (0.1, 0.6)
REQUESTS, FIRST = 300, 60  # requests per cell, of which the first are not counted
USUAL_BATCH = 32


def main() -> None:
    """Print both tables."""
    show = print
    show("| policy | cached of prompts | first token p50, s | p90 | to the end, mean, s |")
    show("|---|---|---|---|---|")
    for policy in get_args(Policy):
        show(chats_row(policy))
    show("\n| prompt | answer | load | split, s | not split, s | auto, s | ratio | split |")
    show("|---|---|---|---|---|---|---|---|")
    worst = 0.0
    for prompt, answer, load in product(PROMPTS, ANSWERS, LOADS):
        means, split = cell(prompt, answer, load, SEEDS)
        ratio = means["auto"] / min(means["never"], means["always"])
        worst = max(worst, ratio)
        times = " | ".join(f"{means[one]:.4f}" for one in ("never", "always", "auto"))
        show(f"| {prompt} | {answer} | {load} | {times} | {ratio:.3f} | {split:.0%} |")
    show(f"\nworst: {worst:.3f}")


def chats_row(policy: Policy) -> str:
    """One row of the table: all answers over a few seeds."""
    found = [one for seed in SEEDS for one in Simulation(policy).run(Chats().arrivals(seed))]
    hits = sum(one.cached for one in found) / sum(one.tokens for one in found)
    tenths = quantiles((one.first_s for one in found), n=10)
    finish_s = mean(one.finish_s for one in found)
    return f"| {policy} | {hits:.1%} | {tenths[4]:.4f} | {tenths[8]:.4f} | {finish_s:.3f} |"


def cell(
    prompt: int, answer: int, load: float, seeds: Sequence[int]
) -> tuple[dict[LocalPrefill, float], float]:
    """Mean seconds per request for each --local-prefill, and how often `auto` has split."""
    cluster = Cluster()
    rate = load * _most(cluster, prompt, answer)
    means, split = dict[LocalPrefill, float](), 0.0
    for local in get_args(LocalPrefill):
        runs = [alike(REQUESTS, prompt, answer, rate, seed) for seed in seeds]
        found = [one for run in runs for one in _counted(local, run)]
        means[local] = mean(one.finish_s for one in found)
        if local == "auto":
            split = mean(one.split for one in found)
    return means, split


def _counted(local: LocalPrefill, arrivals: Sequence[Arrival]) -> Iterator[Outcome]:
    yield from Simulation("planned", local).run(arrivals)[FIRST:]


def _most(cluster: Cluster, prompt: int, answer: int) -> float:
    """The most requests per second that prefill nodes, or decode nodes in batches, serve."""
    speeds: Speeds = cluster.speeds
    prompt_s = speeds.step_s + prompt * speeds.token_s + prompt**2 / 2 * speeds.pair_s
    held_s = (prompt + answer / 2) * speeds.held_token_s
    step_s = speeds.step_s + USUAL_BATCH * (speeds.request_s + held_s)
    decode_s = answer * step_s / USUAL_BATCH
    return min(cluster.prefill / prompt_s, cluster.decode / decode_s)


if __name__ == "__main__":
    main()
