"""How a batch that was chosen is run: the contract, and the plain way, which any device has."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.paged import AttentionBatch, long_row
from engine.attention.plan import Plan
from engine.models.model import Model


class Brought(Protocol):
    """Numbers on their way from the device to the host."""

    def wait(self) -> None:
        """Until all that was launched up to them is done."""

    def read(self) -> list[int]:
        """Wait, and see them."""


class Ran(NamedTuple):
    """What one forward pass came to; the next one may write over it.

    `drawn` are the tokens where the plan had draws and the runner draws; `told` is what was to
    be told of them, for all of the plan's asks together (engine/kernels/telling.py).
    """

    hidden: Tensor  # [tokens, hidden]
    logits: Tensor | None  # [picks, vocabulary] float32; None: there are no picks
    drawn: Brought | None = None
    told: Brought | None = None


class Runner(Protocol):
    """Owns what it needs of a device for as long as it lives."""

    @property
    def draws(self) -> bool:
        """Whether it draws the tokens that a plan has draws for."""

    def run(self, plan: Plan) -> Ran:
        """One forward pass.

        It need not be over when this returns; what is launched on the device next is behind it.
        """


@dataclass(frozen=True, slots=True)
class PlainRunner:
    """A batch is built anew, in plain torch or for the CPU's kernels."""

    model: Model
    memory: KvMemory

    @property
    def draws(self) -> bool:
        """Never: the sampler does."""
        return False

    def run(self, plan: Plan) -> Ran:
        """See Runner."""
        batch = AttentionBatch(self.memory, plan.singles, plan.chunks)
        self.memory.clear(batch.entered)
        ids = long_row(plan.tokens).to(self.memory.block_rows.device)
        return finished(self.model, self.model.forward(ids, batch), plan)


def finished(model: Model, hidden: Tensor, plan: Plan) -> Ran:
    """With logits of the rows that the plan picks, of [tokens, hidden]."""
    if not plan.picks:
        return Ran(hidden, None)
    return Ran(hidden, model.logits(hidden if plan.picks_all else hidden[plan.picks]))
