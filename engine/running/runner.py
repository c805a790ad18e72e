"""The Runner contract for one forward pass, and the plain runner, which works anywhere."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.attention.host_batch import AttentionBatch, long_row
from engine.attention.kv_memory import KvMemory
from engine.attention.plan import Plan, SamplingPlan
from engine.models.decoder import adapters_of
from engine.models.model import Model


class HostCopy(Protocol):
    """An asynchronous copy of numbers from the device to the host."""

    def read(self) -> list[int]:
        """Wait for the copy, and return the numbers."""


class BehindMark(NamedTuple):
    """See HostCopy: numbers that are not read before what the `mark` is behind is done."""

    numbers: HostCopy
    mark: HostCopy

    def read(self) -> list[int]:
        """See HostCopy."""
        self.mark.read()
        return self.numbers.read()


class PendingTokens(NamedTuple):
    """Sampled tokens that are being copied to the host.

    `logprobs` are the requested ones, packed (engine/kernels/token_logprobs.py).
    `alive` has a 0 for each row in which no token was left to draw; None if that cannot happen.
    """

    tokens: HostCopy
    logprobs: HostCopy | None = None
    alive: HostCopy | None = None


class ForwardOutput(NamedTuple):
    """The result of one forward pass; the next one may overwrite it.

    `pending` are the sampled tokens, if the plan has a SamplingPlan and the runner samples.
    """

    hidden: Tensor  # [tokens, hidden]
    logits: Tensor | None  # [picks, vocabulary] float32; None: there are no picks
    pending: PendingTokens | None = None


class DeviceSampler(Protocol):
    """Samples tokens on the device; the next plan reads them there (see Plan.sources)."""

    def draw(self, logits: Tensor, drawing: SamplingPlan) -> PendingTokens:
        """Sample from the last plan's logits, which may be modified in place; does not wait.

        `drawing` must have been made with all earlier tokens known.
        """

    def mark(self) -> HostCopy:
        """A mark behind all that was launched: to read it is to wait for that, not for more."""

    def wait(self) -> None:
        """Wait until the device has finished everything that was launched."""


class Runner(Protocol):
    """Runs forward passes, and owns the device buffers that they need."""

    @property
    def device_sampler(self) -> DeviceSampler | None:
        """What samples on the device; None: the Sampler does it, on the host."""

    def run(self, plan: Plan) -> ForwardOutput:
        """Launch one forward pass; it may still run on the device when this returns."""


@dataclass(frozen=True, slots=True)
class PlainRunner:
    """See Runner. Builds each batch anew, in plain torch or for the CPU's kernels."""

    model: Model
    memory: KvMemory

    @property
    def device_sampler(self) -> None:
        """None: the Sampler samples."""

    def run(self, plan: Plan) -> ForwardOutput:
        """See Runner."""
        device = self.memory.block_rows.device
        batch = AttentionBatch(self.memory, plan.singles, plan.chunks)
        self.memory.clear(batch.entered)
        ids = long_row(plan.tokens).to(device)
        if (adapters := adapters_of(self.model)) is not None:
            adapters.set_from(plan, device)
        return with_logits(self.model, self.model.forward(ids, batch), plan)


@dataclass(frozen=True, slots=True)
class CopyingRunner:
    """See Runner. Copies states as plans say, around the passes of another runner.

    Copies are launched like passes, so they are done in order. Who has read the tokens of a
    pass may give away its blocks, so reading them waits for the copies behind it.
    """

    ours: Runner
    memory: KvMemory

    @property
    def device_sampler(self) -> DeviceSampler | None:
        """See Runner."""
        return self.ours.device_sampler

    def run(self, plan: Plan) -> ForwardOutput:
        """See Runner."""
        self.memory.copy(plan.copies.before)
        ran = self.ours.run(plan)
        if not plan.copies.behind:
            return ran
        self.memory.copy(plan.copies.behind)
        if (sampler := self.device_sampler) is None or ran.pending is None:
            return ran
        tokens = BehindMark(ran.pending.tokens, sampler.mark())
        return ran._replace(pending=ran.pending._replace(tokens=tokens))


def copying_states(runner: Runner, memory: KvMemory) -> Runner:
    """The runner, or one that copies states too if the model keeps any."""
    return CopyingRunner(runner, memory) if memory.state_blocks else runner


def with_logits(model: Model, hidden: Tensor, plan: Plan) -> ForwardOutput:
    """The output of a forward pass, [tokens, hidden], with logits of the rows in plan.picks."""
    if not plan.picks:
        return ForwardOutput(hidden, None)
    return ForwardOutput(hidden, model.logits(hidden if plan.picks_all else hidden[plan.picks]))
