"""`python -m bench.drafts`: what draft tokens gain, and what they cost when they are rejected.

Two engines over the same weights, one of them with drafts, take turns. A repetitive answer is
sampled greedily from two tokens only. A random one is sampled at temperature 1 from all tokens,
so that nothing matches. A misleading one is sampled from sixteen tokens: any two of them have
occurred before, but what followed them predicts nothing.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.checkpoint import Shape, write_checkpoint
from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

RUNS, PROMPT, ANSWER = 7, 64, 128
BATCHES = (1, 4, 16)
ANSWERS = {
    "repeats": Sampling(ANSWER, temperature=0, ignore_eos=True, allowed_token_ids=(5, 6)),
    "does not": Sampling(ANSWER, temperature=1, ignore_eos=True),
    "misleads": Sampling(
        ANSWER,
        temperature=1,
        ignore_eos=True,
        allowed_token_ids=tuple(range(16)),
    ),
}
MS = 1e3


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), Shape(), dtype=torch.bfloat16)
        plain, drafting = _engine(folder, None), _engine(folder, "{}")
    for kind, sampling in ANSWERS.items():
        for batch in BATCHES:
            _compare(kind, sampling, batch, plain, drafting)


def _compare(
    kind: str, sampling: Sampling, batch: int, plain: TorchEngine, drafting: TorchEngine
) -> None:
    before = drafting.load
    times = [
        (_answer_s(plain, sampling, batch), _answer_s(drafting, sampling, batch))
        for _ in range(RUNS)
    ]
    load, (usual, drafted) = drafting.load, map(statistics.median, zip(*times, strict=True))
    tried = load.draft_tokens - before.draft_tokens
    true = load.accepted_tokens - before.accepted_tokens
    took = (
        f"{usual * MS:6.2f} ms a token, {drafted * MS:6.2f} with drafts, {drafted / usual:4.0%}"
    )
    _say(f"{batch:2} answers, each {kind:8}: {took}; {true} of {tried} drafts came true")


def _engine(folder: str, drafts: str | None) -> TorchEngine:
    settings = EngineConfig(
        model=folder, threads=1, enable_prefix_caching=False, speculative_config=drafts
    )
    return load_engine(settings)


def _answer_s(engine: TorchEngine, sampling: Sampling, batch: int) -> float:
    """CPU seconds for each token but the first of one answer, while a whole batch runs."""
    for number in range(batch):
        prompt = tuple(range(7 * number + 1, 7 * number + 1 + PROMPT))
        engine.generate(Request(RequestId(str(number)), prompt, sampling))
    while any(seq.pending > 1 for seq in engine.scheduler.sequences.known.values()):
        engine.schedule()
        engine.step()
    begin = time.process_time()
    while engine.load.running:
        engine.schedule()
        engine.step()
    return (time.process_time() - begin) / (ANSWER - 1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
