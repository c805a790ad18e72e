"""Decode steps on a CPU without Python between their kernels.

The first step with a given number of sequences runs normally while its kernel calls are
recorded. Later steps with the same number write their inputs to the same addresses and repeat
the calls, which is what CUDA graphs do on a device (engine/running/graphs.py).
"""

import logging
from dataclasses import dataclass, field

from torch import Tensor

from engine.attention.host_batch import AttentionBatch, long_row
from engine.attention.kv_memory import KvMemory
from engine.attention.plan import Plan
from engine.kernels.cpu.library import RecordedCalls
from engine.kernels.cpu.native import CpuKernels
from engine.models.decoder import Decoder
from engine.models.model import Model
from engine.models.rope import Rotations
from engine.running.runner import ForwardOutput, PlainRunner, Runner, with_logits

log = logging.getLogger(__name__)
MOST = 32  # sequences: with more, products are oneDNN's, and Python is a small part of a step


@dataclass(slots=True, eq=False)
class _Step:
    """The inputs of steps of one number of sequences, and the recorded calls over them."""

    batch: AttentionBatch
    embedded: Tensor
    rotations: Rotations
    hidden: Tensor
    calls: RecordedCalls

    def run(self, model: Decoder, plan: Plan) -> Tensor:
        """[sequences, hidden]; the next step with as many sequences overwrites it."""
        self.batch.renew(plan.singles)
        self.batch.memory.clear(self.batch.entered)
        self.embedded.copy_(model.embed(long_row(plan.tokens)))
        for rotation in self.rotations:
            rotation.renew()
        self.calls.replay()
        return self.hidden


@dataclass(slots=True)
class ReplayingRunner:
    """See Runner. Batches with chunks, of more than MOST sequences, or with LoRA adapters, are
    not replayed.
    """

    model: Decoder
    memory: KvMemory
    kernels: CpuKernels
    plain: PlainRunner = field(init=False)
    replays: bool = True
    _steps: dict[int, _Step] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plain = PlainRunner(self.model, self.memory)

    @property
    def device_sampler(self) -> None:
        """See Runner."""

    def run(self, plan: Plan) -> ForwardOutput:
        """See Runner."""
        count = len(plan.singles)
        if plan.chunks or count > MOST or not self.replays:
            return self.plain.run(plan)
        if (adapters := self.model.adapters) is not None:
            if plan.has_adapters:
                return self.plain.run(plan)
            adapters.rows = None
        step = self._steps.get(count)
        hidden = self._record(plan) if step is None else step.run(self.model, plan)
        return with_logits(self.model, hidden, plan)

    def _record(self, plan: Plan) -> Tensor:
        """Run the plan, and keep its kernel calls for the next ones, if it can be replayed."""
        batch = AttentionBatch(self.memory, plan.singles, ())
        self.memory.clear(batch.entered)
        embedded = self.model.embed(long_row(plan.tokens))
        rotations = self.model.rotations(batch)
        for rotation in rotations:
            rotation.renew()  # outside the recording, so that later steps look it up anew
        hidden, calls = self.kernels.record(
            lambda: self.model.through(embedded, rotations, batch)
        )
        if isinstance(calls, RecordedCalls):
            self._steps[len(plan.singles)] = _Step(batch, embedded, rotations, hidden, calls)
        else:
            self.replays = False
            log.info("decode steps are not replayed: %s is not a kernel's", calls)
        return hidden


def host_runner(model: Model, memory: KvMemory, *, eager: bool) -> Runner:
    """A runner for a CPU, or any device that torch alone runs on; `eager`: without replays."""
    if eager or memory.kernels is None or not isinstance(model, Decoder):
        return PlainRunner(model, memory)
    return ReplayingRunner(model, memory, memory.kernels)
