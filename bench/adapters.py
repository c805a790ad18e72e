"""`python -m bench.adapters`: what LoRA adapters cost, beside the same engine without them.

One engine has no adapters, the other has several; they take turns. "unused": the second one,
of which nobody requests an adapter. The floor of what adapters add is their bytes and
operations, as shares of the model's own.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from bench.adapter_files import numbers_of, write_adapters
from bench.checkpoint import Shape, write_checkpoint
from bench.engine.ours import OurEngine
from bench.engine.work import SHAPES, ModelWork
from engine.cores import usable_cores
from engine.loading import prepare_torch
from engine.settings import EngineConfig

ADAPTERS, RUNS, CONTEXT, STEPS = 4, 3, 128, 16
BATCHES, PROMPTS = (1, 8, 32), (128, 512)
KINDS = {"unused": 0, "one for all": 1, "four in turns": ADAPTERS}
MS = 1e3


def main(
    shape: Shape = SHAPES["0.5b"],
    batches: Sequence[int] = BATCHES,
    prompts: Sequence[int] = PROMPTS,
    runs: int = RUNS,
) -> None:
    """Print a table."""
    prepare_torch(usable_cores())
    plain, adapted, names = _engines(shape, max(batches), max(*prompts, CONTEXT + STEPS) + 1)
    share = _share(shape)
    sys.stdout.write(f"an adapter has {share:.1%} of the bytes and operations of all layers\n")
    for batch in batches:
        for kind, used in KINDS.items():
            times = [
                (
                    plain.step_s(batch, CONTEXT, STEPS),
                    _asking(adapted, names[:used]).step_s(batch, CONTEXT, STEPS),
                )
                for _ in range(runs)
            ]
            _say(f"decode step of {batch:2}, {kind:13}", times)
    for length in prompts:
        for kind, used in KINDS.items():
            times = [
                (plain.prompt_s(length, 1), _asking(adapted, names[:used]).prompt_s(length, 1))
                for _ in range(runs)
            ]
            _say(f"prompt of {length:4}, {kind:13}", times)


def _engines(shape: Shape, most: int, longest: int) -> tuple[OurEngine, OurEngine, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), shape, dtype=torch.bfloat16)
        modules = write_adapters(Path(folder), shape, ADAPTERS, torch.bfloat16)
        plain, adapted = (
            OurEngine.load(EngineConfig(model=folder, lora_modules=ours), shape, most, longest)
            for ours in ((), modules)
        )
    return plain, adapted, [one.partition("=")[0] for one in modules]


def _asking(engine: OurEngine, names: Sequence[str]) -> OurEngine:
    """The engine, whose next requests name these adapters in turns."""
    engine.adapters = names
    return engine


def _share(shape: Shape) -> float:
    """Of one adapter's numbers in those of all layers."""
    return numbers_of(shape) / ModelWork(shape).layer_weights


def _say(what: str, times: Sequence[tuple[float, float]]) -> None:
    usual, ours = map(statistics.median, zip(*times, strict=True))
    sys.stdout.write(
        f"{what}: {usual * MS:7.2f} ms without, {ours * MS:7.2f} with, {ours / usual:4.0%}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
