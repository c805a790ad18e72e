"""`python -m bench.engine`: one engine alone, beside its ceilings and beside transformers.

The ceiling of a prompt is its operations over the rate of a large product; that of a decode
step is also its bytes, weights and KV, over the rate of a long read. Both rates are measured
in the same run, on as many threads. Whatever fits into a cache can be faster than that.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import torch

from bench.books import books_us
from bench.checkpoint import write_checkpoint
from bench.engine.ours import Ours
from bench.engine.rates import Rates, measure_rates
from bench.engine.theirs import Theirs
from bench.engine.work import BYTES, SHAPES, Work
from engine.settings import EngineConfig

ROOM = 64  # tokens behind the context: what is decoded of it
FEWEST, MOST, ABOUT_S = 3, 30, 2.0  # runs of each measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure; all of it takes about ten minutes on two cores."""

    shapes: tuple[Literal["tiny", "0.5b"], ...] = ("tiny", "0.5b")
    """The models."""
    prompts: tuple[int, ...] = (128, 512, 4096)
    """Lengths of prompts; --empty-prompts leaves them out."""
    batches: tuple[int, ...] = (1, 8, 32)
    """Sequences in a decode step; --empty-batches leaves decode out."""
    contexts: tuple[int, ...] = (128, 4096)
    """Tokens that each of them has."""
    threads: int = len(os.sched_getaffinity(0))
    """Cores."""
    transformers: bool = True
    """Whether it is measured, too."""
    cpu_kernels: Literal["auto", "native", "torch"] = "auto"
    """Of our engine."""
    quantization: Literal["int8"] | None = None
    """Of our engine."""
    profile: bool = False
    """Where the time of our decode steps goes, besides."""


@dataclass(slots=True)
class Bench:
    """One shape: what is asked of it, of both sides in turn."""

    name: str
    options: Options
    rates: Rates
    folder: str
    work: Work = field(init=False)

    def __post_init__(self) -> None:
        """Its work follows from its shape. Operations on 8 bits have bfloat16's ceiling."""
        narrow = self.options.quantization is not None
        self.work = Work(SHAPES[self.name], weight_bytes=1 if narrow else BYTES)

    def run(self) -> None:
        """Load both, and print a line for each measurement."""
        write_checkpoint(Path(self.folder), self.work.shape, dtype=torch.bfloat16)
        options = self.options
        sequences = max(options.batches, default=1)
        tokens = max(*options.contexts, *options.prompts, 1) + ROOM
        settings = EngineConfig(
            model=self.folder,
            threads=options.threads,
            cpu_kernels=options.cpu_kernels,
            quantization=options.quantization,
        )
        with ExitStack() as stack:
            ours = Ours.load(settings, self.work.shape, sequences, tokens)
            theirs = None
            if options.transformers:
                theirs = stack.enter_context(Theirs.load(self.folder, sequences, tokens))
            for length in options.prompts:
                self._prompt(length, ours, theirs)
            for context in options.contexts:
                for batch in options.batches:
                    self._step(batch, context, ours, theirs)

    def _prompt(self, length: int, ours: Ours, theirs: Theirs | None) -> None:
        floor = self.rates.seconds(self.work.prompt_operations(length), 0)
        runs = _runs(lambda: ours.prompt_s(length, 1))
        took = ours.prompt_s(length, runs)
        their = theirs.prompt_s(length, min(runs, 5)) if theirs else None
        self._line(f"prefill {length:6}          ", length, took, floor, their)

    def _step(self, batch: int, context: int, ours: Ours, theirs: Theirs | None) -> None:
        work = self.work
        floor = self.rates.seconds(
            work.step_operations(batch, context), work.step_bytes(batch, context)
        )
        runs = _runs(lambda: ours.step_s(batch, context, 2))
        took = ours.step_s(batch, context, runs)
        their = theirs.step_s(batch, context, min(runs, ROOM - batch, 10)) if theirs else None
        self._line(f"decode {batch:3} at {context:5}", batch, took, floor, their)
        if self.options.profile:
            _say(ours.profile(batch, context, runs))

    def _line(
        self, what: str, tokens: int, took: float, floor: float, their: float | None
    ) -> None:
        beside = f"ceiling {tokens / floor:8.0f}, {floor / took:4.0%} of it reached"
        if their is not None:
            beside += (
                f"; transformers {tokens / their:8.1f}, ours is {their / took:.1f} times that"
            )
        _say(f"{self.name:5} {what}: {tokens / took:8.1f} tokens/s, {beside}")


def main(options: Annotated[Options, cyclopts.Parameter(name="*")] | None = None) -> None:
    """Measure an engine alone, beside its ceilings and beside transformers."""
    options = options or Options()
    torch.set_num_threads(options.threads)
    rates = measure_rates()
    _say(f"{rates}; bfloat16, random weights")
    for name in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            Bench(name, options, rates, folder).run()
    for batch in options.batches:
        _say(f"books of {batch:3} that decode: {books_us(batch):.1f} us a sequence and step")
    _say(f"rates at the end: {measure_rates()}")


def _runs(once: Callable[[], float]) -> int:
    """How many fit into about two seconds; the first, which warms up, is not counted."""
    once()
    since = time.perf_counter()
    once()
    return max(FEWEST, min(MOST, int(ABOUT_S / (time.perf_counter() - since))))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    cyclopts.run(main)
