"""Decode steps on a CPU without Python between their kernels.

The first step of so many sequences is run as any, and the calls of its kernels are remembered.
The next ones of as many put their numbers where those were, and have the calls made again: what
CUDA graphs are on a device (engine/running/graphs.py).
"""

import logging
from dataclasses import dataclass, field

from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.paged import AttentionBatch, long_row
from engine.attention.plan import Plan
from engine.kernels.cpu.library import RecordedCalls
from engine.kernels.cpu.native import CpuKernels
from engine.models.decoder import Decoder
from engine.models.model import Model
from engine.models.rope import Rotations
from engine.running.runner import ForwardOutput, PlainRunner, Runner, with_logits

log = logging.getLogger(__name__)
MOST = 32  # sequences: beyond, products are oneDNN's, and Python is little of a step


@dataclass(slots=True, eq=False)
class _Step:
    """What steps of so many sequences read, and the calls that make hidden states of it."""

    batch: AttentionBatch
    embedded: Tensor
    rotations: Rotations
    hidden: Tensor
    calls: RecordedCalls

    def run(self, model: Decoder, plan: Plan) -> Tensor:
        """[sequences, hidden]; the next step of as many writes over it."""
        self.batch.renew(plan.singles)
        self.batch.memory.clear(self.batch.entered)
        self.embedded.copy_(model.embed(long_row(plan.tokens)))
        for rotation in self.rotations:
            rotation.renew()
        self.calls.replay()
        return self.hidden


@dataclass(slots=True)
class ReplayingRunner:
    """See Runner. Batches with chunks of prompts, and more than MOST sequences, run plainly."""

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
        step = self._steps.get(count)
        hidden = self._record(plan) if step is None else step.run(self.model, plan)
        return with_logits(self.model, hidden, plan)

    def _record(self, plan: Plan) -> Tensor:
        """Run it, and keep what makes the next ones, if there is anything."""
        batch = AttentionBatch(self.memory, plan.singles, ())
        self.memory.clear(batch.entered)
        embedded = self.model.embed(long_row(plan.tokens))
        rotations = self.model.rotations(batch)
        for rotation in rotations:
            rotation.renew()  # looked up now: recorded, it would not be again
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
    """For a CPU, or whatever torch alone runs on; `eager` demands that nothing is replayed."""
    if eager or memory.kernels is None or not isinstance(model, Decoder):
        return PlainRunner(model, memory)
    return ReplayingRunner(model, memory, memory.kernels)
