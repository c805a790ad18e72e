"""The leading rank's runner, sampler and model: each call is also sent to the followers."""

from dataclasses import dataclass

from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.attention.plan import Plan, SamplingPlan
from engine.models.decoder import Decoder
from engine.models.model import ModelShape
from engine.ranks.links import FollowerLinks
from engine.ranks.messages import ComputeLogits, ReceiveTokens, RunPlan
from engine.running.runner import DeviceSampler, ForwardOutput, PendingTokens, Runner
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True)
class LeadingRunner:
    """See Runner: sends each plan to the followers, and runs our part."""

    ours: Runner
    followers: FollowerLinks

    @property
    def device_sampler(self) -> DeviceSampler | None:
        """See Runner; the others learn what ours draws."""
        ours = self.ours.device_sampler
        return None if ours is None else LeadingSampler(ours, self.followers)

    def run(self, plan: Plan) -> ForwardOutput:
        """See Runner; each rank comes to the same."""
        self.followers.broadcast(RunPlan.of(plan))
        return self.ours.run(plan)


@dataclass(frozen=True, slots=True)
class LeadingSampler:
    """See DeviceSampler: the others are told to share, as no plan told them."""

    ours: DeviceSampler
    followers: FollowerLinks

    def draw(self, logits: Tensor, drawing: SamplingPlan) -> PendingTokens:
        """See DeviceSampler."""
        self.followers.broadcast(ReceiveTokens(len(drawing.draws)))
        return self.ours.draw(logits, drawing)

    def wait(self) -> None:
        """For our device: what it last heard of the others is behind all that they write."""
        self.ours.wait()


@dataclass(frozen=True, slots=True)
class LeadingModel:
    """See Model, for what is asked beside the running of plans."""

    ours: Decoder
    followers: FollowerLinks
    group: RankGroup

    @property
    def config(self) -> ModelShape:
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
        self.followers.broadcast(ComputeLogits(len(hidden)))
        return self.ours.logits(self.group.broadcast(hidden.contiguous()))
