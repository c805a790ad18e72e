"""How a batch that was chosen is run: the contract, and the plain way, which any device has."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.paged import AttentionBatch, long_row
from engine.attention.plan import Drawing, Plan
from engine.models.model import Model


class Brought(Protocol):
    """Numbers on their way from the device to the host."""

    def read(self) -> list[int]:
        """Wait, and see them."""


class Sent(NamedTuple):
    """The tokens that were drawn, on their way to the host.

    `told` has the requested log-probabilities (engine/kernels/token_logprobs.py).
    `alive` has a 0 for each row where nothing was left to draw; None: that cannot be.
    """

    tokens: Brought
    told: Brought | None = None
    alive: Brought | None = None


class Ran(NamedTuple):
    """What one forward pass came to; the next one may write over it.

    `sent` is what was drawn where the plan says how, and the runner draws.
    """

    hidden: Tensor  # [tokens, hidden]
    logits: Tensor | None  # [picks, vocabulary] float32; None: there are no picks
    sent: Sent | None = None


class Drawer(Protocol):
    """Draws tokens where the logits are; plans find them there (see Plan.sources)."""

    def draw(self, logits: Tensor, drawing: Drawing) -> Sent:
        """From what the last plan came to, which may change, once the host knows how.

        Nobody waits; `drawing` knows all tokens before.
        """

    def wait(self) -> None:
        """Until all that was launched on the device is done."""


class Runner(Protocol):
    """Owns what it needs of a device for as long as it lives."""

    @property
    def drawer(self) -> Drawer | None:
        """Draws what plans want drawn, or what they leave open; None: the sampler does."""

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
    def drawer(self) -> None:
        """None: the sampler does."""

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
