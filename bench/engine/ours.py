"""Our engine, measured: prompts from submission to first token, and whole decode steps.

For decode steps the prompts' KV counts as transferred, as on a decode node: its contents are
arbitrary, and no prompt has to run before the first measured step.
"""

import cProfile
import io
import pstats
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.running.accelerator import Accelerator
from engine.running.runner import Runner
from engine.settings import EngineConfig
from engine.stepping.ahead import AheadStepper
from engine.stepping.stepper import PlainStepper
from engine.torch_engine import TorchEngine

PROFILED = 14


class Shape(Protocol):
    """The dimensions of a model that determine the size of its KV and its vocabulary."""

    @property
    def num_hidden_layers(self) -> int:
        """As in config.json, like the others."""

    @property
    def num_key_value_heads(self) -> int:
        """KV heads of each layer."""

    @property
    def head_dim(self) -> int:
        """The width of a head."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""


@dataclass(slots=True)
class OurEngine:
    """An engine with memory for the largest batch and context of all measurements.

    Its requests name `adapters` in turns, or none.
    """

    engine: TorchEngine
    shape: Shape
    adapters: Sequence[str] = ()
    _requests: int = 0

    @classmethod
    def load(
        cls,
        settings: EngineConfig,
        shape: Shape,
        sequences: int,
        tokens: int,
        together: int | None = None,
        accelerator: Accelerator | None = None,
    ) -> "OurEngine":
        """Load an engine for `sequences` of `tokens` each, or `together` tokens in total."""
        each = 4 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim
        most = sequences * tokens if together is None else together
        blocks = most // settings.block_size + 2 * sequences  # partly filled ones
        engine = load_engine(
            replace(
                settings,
                max_num_seqs=sequences,
                max_model_len=tokens,
                enable_prefix_caching=False,
                kv_cache_memory_bytes=blocks * each * settings.block_size,
            ),
            accelerator=accelerator,
        )
        engine.memory.block_rows.normal_()
        return cls(engine, shape)

    @property
    def runner(self) -> Runner:
        """The runner of its steps."""
        stepper = self.engine.stepper
        if isinstance(stepper, AheadStepper):
            stepper = stepper.plain
        assert isinstance(stepper, PlainStepper)
        return stepper.runner

    def prompt_s(self, length: int, runs: int) -> float:
        """Median seconds from submission to the first token."""
        times = list[float]()
        for _ in range(runs):
            since = time.perf_counter()
            self.prompt(length)
            times.append(time.perf_counter() - since)
        return statistics.median(times)

    def prompt(self, length: int) -> None:
        """Run a new prompt, from submission to its first token."""
        self.engine.generate(self._request(length, 1))
        while self._works():
            self.engine.schedule()
            self.engine.step()

    def step_s(self, batch: int, context: int, steps: int) -> float:
        """Median seconds of a decode step, including `schedule`."""
        self.arrive(batch, context, steps)
        return statistics.median(self._steps(batch))

    def profile(self, batch: int, context: int, steps: int, functions: int = PROFILED) -> str:
        """Where some steps spent most, by function; a kernel's time counts as its caller's."""
        self.arrive(batch, context, steps)
        watch, said = cProfile.Profile(), io.StringIO()
        watch.runcall(self._steps, batch)
        longest = pstats.Stats(watch, stream=said).strip_dirs().sort_stats("tottime")
        longest.print_stats(functions)
        return said.getvalue()

    def arrive(self, batch: int, context: int, steps: int) -> list[RequestId]:
        """Add `batch` sequences whose KV counts as transferred, each with room for `steps`."""
        requests = [self._request(context, steps) for _ in range(batch)]
        for request in requests:
            assert self.engine.reserve(request) is not None, "room for all was asked for"
            self.engine.resume(request.request_id, [1])
        return [request.request_id for request in requests]

    def step(self, batch: int) -> None:
        """Run one decode step of all sequences that have arrived."""
        self.engine.schedule()
        made = self.engine.step().num_tokens
        assert made == batch, f"a step of {made} tokens: the sequences are at their ends"

    def end(self, names: Sequence[RequestId]) -> None:
        """Release these sequences."""
        for name in names:
            self.engine.release(name)

    def _steps(self, batch: int) -> Sequence[float]:
        times = list[float]()
        while self._works():
            since = time.perf_counter()
            self.engine.schedule()
            if self.engine.step().num_tokens == batch:
                times.append(time.perf_counter() - since)
        return times

    def _works(self) -> bool:
        return bool(self.engine.load.running or self.engine.load.waiting)

    def _request(self, length: int, answer: int) -> Request:
        prompt = tuple(torch.randint(1, self.shape.vocab_size, (length,)).tolist())  # fast
        name = RequestId(f"{random.getrandbits(64):x}")
        sampling, adapter = Sampling(answer, temperature=0, ignore_eos=True), None
        if self.adapters:
            adapter = self.adapters[self._requests % len(self.adapters)]
        self._requests += 1
        return Request(name, prompt, sampling, adapter=adapter)
