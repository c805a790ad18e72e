"""Our engine, measured: prompts from submission to first token, and whole decode steps.

For decode the KV of a prompt is taken as arrived from elsewhere, as on a decode node: it is
random, and the first measured step comes at once.
"""

import cProfile
import io
import pstats
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.checkpoint import Shape
from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

BLOCK = 16
PROFILED = 14


@dataclass(slots=True)
class Ours:
    """An engine with memory for the largest batch and context that it will be asked for."""

    engine: TorchEngine
    shape: Shape

    @classmethod
    def load(cls, settings: EngineConfig, shape: Shape, sequences: int, tokens: int) -> "Ours":
        """`settings`, with room for so many sequences of so many tokens each."""
        kv = 4 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * BLOCK
        blocks = sequences * (-(-tokens // BLOCK) + 1)
        engine = load_engine(
            EngineConfig(
                model=settings.model,
                threads=settings.threads,
                cpu_kernels=settings.cpu_kernels,
                quantization=settings.quantization,
                max_num_seqs=sequences,
                max_model_len=tokens,
                block_size=BLOCK,
                enable_prefix_caching=False,
                kv_cache_memory_bytes=blocks * kv,
            )
        )
        engine.memory.block_rows.normal_()
        return cls(engine, shape)

    def prompt_s(self, length: int, runs: int) -> float:
        """Median seconds from submission to the first token."""
        times = list[float]()
        for _ in range(runs):
            request = self._request(length, 1)
            since = time.perf_counter()
            self.engine.generate(request)
            while self._works():
                self.engine.schedule()
                self.engine.step()
            times.append(time.perf_counter() - since)
        return statistics.median(times)

    def step_s(self, batch: int, context: int, steps: int) -> float:
        """Median seconds of a decode step, schedule included."""
        self._arrive(batch, context, steps)
        return statistics.median(self._steps(batch))

    def profile(self, batch: int, context: int, steps: int) -> str:
        """Where the time of some steps goes, by function; a kernel's counts as its caller's."""
        self._arrive(batch, context, steps)
        watch, said = cProfile.Profile(), io.StringIO()
        watch.runcall(self._steps, batch)
        pstats.Stats(watch, stream=said).strip_dirs().sort_stats("tottime").print_stats(
            PROFILED
        )
        return said.getvalue()

    def _arrive(self, batch: int, context: int, steps: int) -> None:
        for _ in range(batch):
            request = self._request(context, steps)
            assert self.engine.reserve(request) is not None, "room for all was asked for"
            self.engine.resume(request.request_id, [1])

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
        prompt = tuple(random.randrange(1, self.shape.vocab_size) for _ in range(length))
        name = RequestId(f"{random.getrandbits(64):x}")
        return Request(name, prompt, Sampling(answer, temperature=0, ignore_eos=True))
