"""Drives a real engine over a tiny checkpoint, and counts its blocks when it is done."""

import ctypes
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.paged import Span
from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.running.runner import CopyingRunner, Runner
from engine.scheduling.watermark import Watermark
from engine.settings import EngineConfig
from engine.stepping.stepper import PlainStepper
from engine.torch_engine import TorchEngine

GREEDY = Sampling(max_tokens=16, temperature=0, ignore_eos=True)


def load(folder: Path, **settings: object) -> TorchEngine:
    """An engine in float32 on one thread; `settings` are EngineConfig's."""
    chosen: dict[str, Any] = {"dtype": "float32", "threads": 1, **settings}
    return load_engine(EngineConfig(model=str(folder), **chosen))


def eager(engine: TorchEngine) -> TorchEngine:
    """It takes in whatever fits and keeps nothing free, so answers that grow preempt."""
    engine.scheduler.sequences.watermark = Watermark(0.0, learns=False)
    return engine


def runner_of(engine: TorchEngine) -> Runner:
    """What runs its plain steps, without what copies states around them."""
    assert isinstance(engine.stepper, PlainStepper)
    runner = engine.stepper.runner
    return runner.ours if isinstance(runner, CopyingRunner) else runner


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Some tokens; another seed, other tokens."""
    generator = torch.Generator().manual_seed(1000 * length + seed)
    drawn: list[int] = torch.randint(0, 384, (length,), generator=generator).tolist()
    return tuple(drawn)


def requests(prompts: Iterable[tuple[int, ...]], sampling: Sampling = GREEDY) -> list[Request]:
    """One request for each prompt, named by its number."""
    return [
        Request(RequestId(str(number)), tokens, sampling)
        for number, tokens in enumerate(prompts)
    ]


def run(engine: TorchEngine, asked: Iterable[Request]) -> list[list[int]]:
    """All of them at once; the answers, in order. Every block is back then."""
    asked = list(asked)
    for request in asked:
        engine.generate(request)
    engine.schedule()
    answers = drain(engine)
    assert_idle(engine)
    return [answers[request.request_id] for request in asked]


def drain(engine: TorchEngine) -> dict[RequestId, list[int]]:
    """Step and schedule until nothing waits or runs; what was sampled on the way."""
    answers = dict[RequestId, list[int]]()
    while engine.load.waiting or engine.load.running:
        for one in engine.step().sampled:
            answers.setdefault(one.request_id, []).extend(one.tokens)
        engine.schedule()
    return answers


def abort_some(engine: TorchEngine, asked: Iterable[Request]) -> None:
    """Two of them are released while they run."""
    for request in asked:
        engine.generate(request)
    for step in range(30):
        engine.schedule()
        engine.step()
        if step in (2, 5) and engine.load.running:
            engine.release(next(iter(engine.scheduler.sequences.running)))
    assert_idle(engine)


def assert_idle(engine: TorchEngine) -> None:
    """Nothing leaked."""
    engine.step()  # an idle engine checks its books
    load = engine.load
    assert (load.waiting, load.running) == (0, 0)
    assert load.free_blocks == load.total_blocks


@torch.inference_mode()
def prompt_logits(engine: TorchEngine, tokens: Sequence[int], chunk: int) -> Tensor:
    """[tokens, vocabulary]: the decoder alone, over an idle engine's last blocks."""
    size, most = engine.info.block_size, engine.memory.num_blocks
    blocks = range(most - 1, most - 1 - -(-len(tokens) // size), -1)
    parts = list[Tensor]()
    for start in range(0, len(tokens), chunk):
        part = torch.tensor(tokens[start : start + chunk])
        span = Span(start, len(part), blocks, state=range(engine.info.state_blocks))
        batch = AttentionBatch(engine.memory, [], [span])
        parts.append(engine.decoder.logits(engine.decoder.forward(part, batch)))
    return torch.cat(parts)


def copy_blocks(
    source: TorchEngine, sink: TorchEngine, pairs: Iterable[tuple[int, int]]
) -> None:
    """Carry the bytes of some blocks from each rank's memory to another engine's."""
    regions = list(zip(source.kv_regions, sink.kv_regions, strict=True))
    for (here, there), (ours, theirs) in product(pairs, regions):
        assert ours.block_bytes == theirs.block_bytes
        ctypes.memmove(theirs.at(there), ours.at(here), ours.block_bytes)


def park(engine: TorchEngine, asked: Sequence[Request]) -> dict[RequestId, int]:
    """Run prompts until all are parked; their first tokens."""
    for request in asked:
        engine.prefill(request)
    engine.schedule()
    first = drain(engine)
    return {name: tokens[0] for name, tokens in first.items()}


def move(source: TorchEngine, sink: TorchEngine, request: Request) -> int:
    """Reserve, fetch what the sink does not know yet, and let the source forget it."""
    reserved = sink.reserve(request)
    assert reserved is not None
    known = reserved.filled // sink.info.block_size
    pairs = list(zip(source.blocks(request.request_id), reserved.blocks, strict=True))
    copy_blocks(source, sink, pairs[known:])
    source.release(request.request_id)
    return known


def hand_over(
    source: TorchEngine, sink: TorchEngine, asked: Sequence[Request]
) -> list[list[int]]:
    """Prompts at the one, all that follows at the other; the answers, in order."""
    first = park(source, asked)
    for request in asked:
        move(source, sink, request)
        sink.resume(request.request_id, [first[request.request_id]])
    sink.schedule()
    rest = drain(sink)
    return [[first[one.request_id], *rest[one.request_id]] for one in asked]
