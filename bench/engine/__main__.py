"""`python -m bench.engine`: one engine alone, compared with ceilings and with transformers.

The ceiling of a prompt is its operations over the rate of a large product; that of a decode
step is also its bytes, weights and KV, over the rate of a long read. Both rates are measured
just before and after each line, on as many threads, and the better one counts. Data that fits
into a cache can be read faster than that.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import torch

from bench.books import books_us
from bench.checkpoint import write_checkpoint
from bench.engine.ours import OurEngine
from bench.engine.rates import Meter, Rates
from bench.engine.theirs import TransformersEngine
from bench.engine.work import SHAPES, WEIGHT_BYTES, ModelWork
from engine.cores import usable_cores
from engine.loading import prepare_torch
from engine.settings import EngineConfig

ROOM = 64  # tokens after the context, for decode steps
MOST_OF_THEIRS = 1 << 16  # tokens of KV; its masks grow with their square
FEWEST, MOST, ABOUT_S, ROUNDS = 3, 30, 2.0, 5  # runs of each measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure; all of it takes some minutes on two cores."""

    shapes: tuple[Literal["tiny", "0.5b", "1.5b"], ...] = ("tiny", "0.5b")
    """The models."""
    prompts: tuple[int, ...] = (128, 512, 4096)
    """Lengths of prompts; --empty-prompts leaves them out."""
    batches: tuple[int, ...] = (1, 8, 32)
    """Sequences in a decode step; --empty-batches leaves decode out."""
    contexts: tuple[int, ...] = (128, 4096)
    """Tokens that each of them has."""
    threads: int = usable_cores()
    """Cores."""
    transformers: bool = True
    """Whether it is measured, too; not with more than MOST_OF_THEIRS tokens of KV."""
    cpu_kernels: Literal["auto", "native", "torch"] = "auto"
    """Of our engine."""
    quantization: Literal["int8", "fp8", "int4"] | None = None
    """Of our engine."""
    profile: bool = False
    """Where the time of our decode steps goes, besides; none is replayed then."""


@dataclass(frozen=True, slots=True)
class Line:
    """One measurement: a prompt, or a decode step of a batch with a context."""

    batch: int
    context: int | None = None

    def __str__(self) -> str:
        if self.context is None:
            return f"prefill {self.batch:5}        "
        return f"decode {self.batch:3} at {self.context:6}"

    @property
    def kv_tokens(self) -> int:
        """KV tokens of all its sequences."""
        return self.batch * (self.context or 1)

    def ours(self, ours: OurEngine, runs: int) -> float:
        """Our seconds."""
        if self.context is None:
            return ours.prompt_s(self.batch, runs)
        return ours.step_s(self.batch, self.context, runs)

    def theirs(self, theirs: TransformersEngine, runs: int) -> float:
        """transformers' seconds, from fewer runs."""
        if self.context is None:
            return theirs.prompt_s(self.batch, min(runs, 5))
        return theirs.step_s(self.batch, self.context, min(runs, 10))

    def operations(self, work: ModelWork) -> float:
        """The fewest operations that it needs."""
        if self.context is None:
            return work.prompt_operations(self.batch)
        return work.step_operations(self.batch, self.context)

    def bytes(self, work: ModelWork) -> float:
        """The fewest bytes that it reads; for a prompt, few compared with its operations."""
        return 0 if self.context is None else work.step_bytes(self.batch, self.context)


@dataclass(slots=True)
class Bench:
    """All measurements of one shape, for both engines."""

    name: str
    options: Options
    meter: Meter
    folder: str
    work: ModelWork = field(init=False)

    def __post_init__(self) -> None:
        """Count the shape's work. int8 operations have bfloat16's ceiling."""
        self.work = ModelWork(SHAPES[self.name], WEIGHT_BYTES[self.options.quantization])

    def run(self) -> None:
        """Ours first, then transformers', as both at once would compete for the GIL."""
        write_checkpoint(Path(self.folder), self.work.shape, dtype=torch.bfloat16)
        options = self.options
        sequences = max(options.batches, default=1)
        tokens = max(*options.contexts, *options.prompts, 1) + ROOM
        ours = [(line, took, runs) for line, took, runs in self._ours(sequences, tokens)]
        if not options.transformers:
            return
        with TransformersEngine.load(self.folder, sequences, tokens) as theirs:
            for line, took, runs in ours:
                if line.kv_tokens > MOST_OF_THEIRS:
                    _say(f"{self.name:5} {line}: transformers left out, it takes minutes")
                else:
                    self._compare(line, took, line.theirs(theirs, runs))

    def _ours(self, sequences: int, tokens: int) -> Iterator[tuple[Line, float, int]]:
        """Each line with our seconds, and the number of runs."""
        options = self.options
        settings = EngineConfig(
            model=self.folder,
            threads=options.threads,
            cpu_kernels=options.cpu_kernels,
            quantization=options.quantization,
            enforce_eager=options.profile,
        )
        ours = OurEngine.load(settings, self.work.shape, sequences, tokens)
        for line in self._lines():
            runs = _runs(partial(line.ours, ours))
            took = self._measure(line, ours, runs)
            if options.profile and line.context is not None:
                _say(ours.profile(line.batch, line.context, runs))
            yield line, took, runs

    def _measure(self, line: Line, ours: OurEngine, runs: int) -> float:
        """Our seconds, in rounds, each between two measurements of the machine's ceilings.

        The ceilings change by half within seconds. The reported round is the median by its
        share of its own ceiling. A long measurement has one round, as it averages such changes.
        """
        rounds, before = list[tuple[float, float, Rates]](), self.meter.measure()
        for _ in range(ROUNDS if runs > FEWEST else 1):
            took, after = line.ours(ours, runs), self.meter.measure()
            rates = before.better(after)
            floor = rates.seconds(line.operations(self.work), line.bytes(self.work))
            rounds.append((floor / took, took, rates))
            before = after
        _, took, rates = sorted(rounds, key=itemgetter(0))[len(rounds) // 2]
        self._say(line, took, rates)
        return took

    def _lines(self) -> Iterator[Line]:
        for length in self.options.prompts:
            yield Line(length)
        for context in self.options.contexts:
            for batch in self.options.batches:
                yield Line(batch, context)

    def _say(self, line: Line, took: float, rates: Rates) -> None:
        floor = rates.seconds(line.operations(self.work), line.bytes(self.work))
        beside = f"ceiling {line.batch / floor:8.1f}, {floor / took:4.0%} of it reached"
        _say(f"{self.name:5} {line}: {line.batch / took:8.1f} tokens/s, {beside}")

    def _compare(self, line: Line, took: float, theirs: float) -> None:
        rate = f"transformers {line.batch / theirs:8.1f} tokens/s"
        _say(f"{self.name:5} {line}: {rate}, ours is {theirs / took:.1f} times that")


def main(options: Annotated[Options, cyclopts.Parameter(name="*")] | None = None) -> None:
    """Measure an engine alone, beside its ceilings and beside transformers."""
    options = options or Options()
    prepare_torch(options.threads)
    meter = Meter()
    _say(f"{meter.measure()}; bfloat16, random weights")
    for name in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            Bench(name, options, meter, folder).run()
    for batch in options.batches:
        _say(f"books of {batch:3} that decode: {books_us(batch):.1f} us a sequence and step")
    _say(f"rates at the end: {meter.measure()}")


def _runs(once: Callable[[int], float]) -> int:
    """How many runs fit into about two seconds, after one that warms up."""
    once(FEWEST)
    since = time.perf_counter()
    once(FEWEST)
    return max(FEWEST, min(MOST, int(ABOUT_S * FEWEST / (time.perf_counter() - since))))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    cyclopts.run(main)
