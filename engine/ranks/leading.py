"""What the rank that leads does, all ranks do: as it runs a batch, and beside batches."""

from dataclasses import dataclass

from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.attention.plan import Drawing, Plan
from engine.models.decoder import Decoder
from engine.models.model import Shape
from engine.ranks.crew import Crew
from engine.ranks.steps import Drawn, Logits, Step
from engine.running.runner import Drawer, Ran, Runner, Sent
from engine.sharding.group import Group


@dataclass(frozen=True, slots=True)
class LeadingRunner:
    """See Runner: every rank runs the plan with a runner of its own."""

    ours: Runner
    crew: Crew

    @property
    def drawer(self) -> Drawer | None:
        """See Runner; the others learn what ours draws."""
        ours = self.ours.drawer
        return None if ours is None else LeadingDrawer(ours, self.crew)

    def run(self, plan: Plan) -> Ran:
        """See Runner; each rank comes to the same."""
        self.crew.tell(Step.of(plan))
        return self.ours.run(plan)


@dataclass(frozen=True, slots=True)
class LeadingDrawer:
    """See Drawer: the others are told to share, as no plan told them."""

    ours: Drawer
    crew: Crew

    def draw(self, logits: Tensor, drawing: Drawing) -> Sent:
        """See Drawer."""
        self.crew.tell(Drawn(len(drawing.draws)))
        return self.ours.draw(logits, drawing)

    def wait(self) -> None:
        """For our device: what it last heard of the others is behind all that they write."""
        self.ours.wait()


@dataclass(frozen=True, slots=True)
class LeadingModel:
    """See Model, for what is asked beside the running of plans."""

    ours: Decoder
    crew: Crew
    group: Group

    @property
    def config(self) -> Shape:
        """Of our part; what an engine asks of it is as in the whole."""
        return self.ours.config

    @property
    def kv_shape(self) -> KvShape:
        """Of our part."""
        return self.ours.kv_shape

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """Of a plan that the others run, too."""
        return self.ours.forward(tokens, batch)

    def logits(self, hidden: Tensor) -> Tensor:
        """See Model: the others are told of it, and are given the rows."""
        self.crew.tell(Logits(len(hidden)))
        return self.ours.logits(self.group.told(hidden.contiguous()))
