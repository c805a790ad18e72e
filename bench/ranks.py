"""Tensor parallel ranks of one engine, compared with one process on the same cores.

    python -m bench.ranks --model FOLDER --ranks 1 2

Tokens per second of decode steps and of a prompt, with as many threads in total as there are
cores. All engines exist at once and take turns, so that other load on the machine affects all
of them; each number is the median of rounds, and each ratio the median of ratios within a
round. Ranks on the same cores compute no faster, so the highest possible ratio is that of the
first engine with the sums between ranks added to its own work: these are timed alone, by
threads of this process, and that ratio is printed as well. It never passes or fails.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import uuid4

import torch
from torch._C._distributed_c10d import TCPStore

from engine.loading import load_engine
from engine.ranks.opening import refuse_ranks
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.sharding.group import LOOPBACK, RankGroup
from engine.sharding.shard import Shard
from engine.torch_engine import TorchEngine
from node.ipc import EngineProcessConfig
from node.ranks import Ranks, start_ranks

ROUNDS, PROMPT, ANSWER, SEATS = 5, 256, 32, 8
SUMS_OF_A_LAYER = 2
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Step:
    """The collectives of one forward pass: sums over `rows`, and logits of `picks`."""

    rows: int
    picks: int


@dataclass(frozen=True)
class RankWork:
    """Requests with prompts of one length, and answers of one length."""

    lengths: Sequence[int]
    answer: int
    step: Step

    @property
    def tokens(self) -> int:
        """The tokens that its rate counts: of answers, or of prompts with no further answer."""
        return self.answer * len(self.lengths) if self.answer > 1 else sum(self.lengths)


WORKS = {
    f"prompt of {PROMPT}": RankWork([PROMPT], 1, Step(PROMPT, 1)),
    f"decode of {SEATS}": RankWork([1] * SEATS, ANSWER, Step(SEATS, SEATS)),
}


@dataclass
class Bench:
    """One engine, and its seconds for each work, round by round."""

    ranks: int
    engine: TorchEngine
    others: Ranks | None = None  # they end when their pipes are closed
    seconds: dict[str, list[float]] = field(default_factory=dict)


def main() -> None:
    """Print a line for each number of ranks and each work, compared with the first number's;
    ends the process, and the other ranks with it.
    """
    parser = argparse.ArgumentParser(prog="bench.ranks")
    parser.add_argument("--model", required=True)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    benches = [opened(asked.model, asked.load_format, ranks) for ranks in asked.ranks]
    for number in range(asked.rounds + 1):
        for bench in benches:
            for name, work in WORKS.items():
                took = _seconds(bench.engine, number, work)
                if number:  # the first round warms up
                    bench.seconds.setdefault(name, []).append(took)
    for bench in benches:
        for name, work in WORKS.items():
            sys.stdout.write(line(bench, benches[0], name, work) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a normal exit would close ranks first, and end as if they had died


def line(bench: Bench, first: Bench, name: str, work: RankWork) -> str:
    """An engine's rate, its ratio to the first engine's, and the highest possible ratio."""
    ours, theirs = bench.seconds[name], first.seconds[name]
    told = f"{bench.ranks} ranks, {name}: {work.tokens / statistics.median(ours):.0f} tokens/s"
    if bench is first:
        return told
    ratio = statistics.median(one / other for one, other in zip(theirs, ours, strict=True))
    alone = sums_alone(bench.engine, bench.ranks, work.step) * work.answer
    return f"{told}, {ratio:.2f} of {first.ranks}; at most {most(theirs, alone):.2f}"


def most(theirs: Sequence[float], sums_s: float) -> float:
    """The ratio of an engine that does the first one's work, and the sums in addition."""
    took = statistics.median(theirs)
    return took / (took + sums_s)


def opened(model: str, load_format: str, ranks: int) -> Bench:
    """Load an engine, with the other ranks' processes."""
    config = EngineConfig(
        model=model,
        load_format=load_format,
        tensor_parallel_size=ranks,
        max_num_seqs=SEATS,
        max_model_len=PROMPT + ANSWER,
        enable_prefix_caching=False,
    )
    if ranks == 1:
        return Bench(1, load_engine(config))
    refuse_ranks(config)
    job = EngineProcessConfig(
        engine=config,
        ipc_address="",
        engine_id=uuid4().hex,
        connector="tcp",
        kv_host=LOOPBACK,
        kv_port=0,
        advertise_host=LOOPBACK,
        log_level="warning",
        kv_checksum="off",
        kv_load_failure="recompute",
    )
    others = start_ranks(job)
    return Bench(ranks, load_engine(config, others.followers), others)


def sums_alone(engine: TorchEngine, ranks: int, step: Step) -> float:
    """Seconds of one forward pass's all-reduces and its gather of logits, median of rounds."""
    config, dtype = engine.decoder.config, engine.memory.block_rows.dtype
    words, layers = config.vocab_size, engine.decoder.kv_shape.layers

    def work(group: RankGroup) -> None:
        hidden = torch.zeros(step.rows, config.hidden_size, dtype=dtype)
        part = torch.zeros(step.picks, len(group.shard.part(words)), dtype=dtype)
        for _ in range(SUMS_OF_A_LAYER * layers):
            group.all_reduce(hidden)
        group.all_gather_columns(part, words)

    return _together(ranks, work)


def _together(ranks: int, work: Callable[[RankGroup], None]) -> float:
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)

    def one(rank: int) -> float:
        mine = store if rank == 0 else TCPStore(LOOPBACK, store.port)
        group, took = RankGroup.connect(mine, Shard(rank, ranks), CPU), list[float]()
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            work(group)
            took.append(time.perf_counter() - begun)
        return statistics.median(took[1:])

    with ThreadPoolExecutor(ranks) as threads:
        return max(threads.map(one, range(ranks)))


def _seconds(engine: TorchEngine, number: int, work: RankWork) -> float:
    """Seconds until all requests are answered."""
    sampling = Sampling(max_tokens=work.answer, temperature=0, ignore_eos=True)
    for index, length in enumerate(work.lengths):
        name = RequestId(f"{number}-{index}-{length}")
        engine.generate(Request(name, tuple(range(1, length + 1)), sampling))
    begun = time.perf_counter()
    engine.schedule()
    while engine.load.waiting or engine.load.running:
        engine.step()
        engine.schedule()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
