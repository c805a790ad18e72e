"""One engine whose model is shared out among ranks, beside the same cores in one process.

    python -m bench.ranks --model FOLDER --ranks 1 2

Tokens per second of decode steps and of a prompt, each the median over runs, on as many threads
together as there are cores. It never passes or fails.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from uuid import uuid4

from engine.loading import load_engine, refuse_ranks
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine
from node.ipc import EngineJob
from node.ranks import start_ranks

RUNS, PROMPT, ANSWER, SEATS = 3, 256, 32, 8
HOST = "127.0.0.1"


def main() -> None:
    """One line for each number of ranks; every one but the first is a ratio to it as well."""
    parser = argparse.ArgumentParser(prog="bench.ranks")
    parser.add_argument("--model", required=True)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    asked = parser.parse_args()
    first: tuple[float, float] | None = None
    for ranks in asked.ranks:
        prompt, decode = measure(asked.model, asked.load_format, ranks)
        first = first or (prompt, decode)
        sys.stdout.write(
            f"{ranks} ranks: prompt {prompt:.0f} tokens/s ({prompt / first[0]:.2f}), "
            f"decode of {SEATS}: {decode:.0f} tokens/s ({decode / first[1]:.2f})\n"
        )
        sys.stdout.flush()


def measure(model: str, load_format: str, ranks: int) -> tuple[float, float]:
    """Tokens per second of prompts, and of decode steps of SEATS sequences."""
    config = EngineConfig(
        model=model,
        load_format=load_format,
        tensor_parallel_size=ranks,
        max_num_seqs=SEATS,
        max_model_len=PROMPT + ANSWER,
        enable_prefix_caching=False,
    )
    if ranks == 1:
        return _rates(load_engine(config))
    refuse_ranks(config)
    job = EngineJob(
        engine=config,
        ipc_address="",
        engine_id=uuid4().hex,
        connector="tcp",
        kv_host=HOST,
        kv_port=0,
        advertise_host=HOST,
        log_level="warning",
        kv_checksum="off",
        kv_load_failure="recompute",
    )
    others = start_ranks(job)  # they end once nobody has their pipes
    return _rates(load_engine(config, others.crew))


def _rates(engine: TorchEngine) -> tuple[float, float]:
    prompts, decodes = list[float](), list[float]()
    for run in range(RUNS + 1):
        prompt = _seconds(engine, run, [PROMPT], 1)
        decode = _seconds(engine, run, [1] * SEATS, ANSWER)
        if run:  # the first warms up
            prompts.append(PROMPT / prompt)
            decodes.append(SEATS * ANSWER / decode)
    return statistics.median(prompts), statistics.median(decodes)


def _seconds(engine: TorchEngine, run: int, lengths: Sequence[int], answer: int) -> float:
    """Until all requests of these lengths are answered."""
    sampling = Sampling(max_tokens=answer, temperature=0, ignore_eos=True)
    for number, length in enumerate(lengths):
        name = RequestId(f"{run}-{number}-{length}")
        engine.generate(Request(name, tuple(range(1, length + 1)), sampling))
    begun = time.perf_counter()
    engine.schedule()
    while engine.load.waiting or engine.load.running:
        engine.step()
        engine.schedule()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
