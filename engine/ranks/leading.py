"""The leading rank's runner, sampler and model: each call is also sent to the followers."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.attention.plan import Plan, SamplingPlan
from engine.models.decoder import Decoder
from engine.models.model import ModelShape
from engine.ranks.links import FollowerLinks
from engine.ranks.messages import ComputeLogits, ReceiveTokens, RunHead, RunPlan
from engine.running.head_runner import HeadRunner
from engine.running.runner import (
    DeviceSampler,
    ForwardOutput,
    HostCopy,
    PendingTokens,
    Runner,
)
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True)
class LeadingRunner:
    """See Runner: sends each plan to the followers, and runs this rank's part."""

    ours: Runner
    followers: FollowerLinks

    @property
    def device_sampler(self) -> DeviceSampler | None:
        """See Runner; the followers receive the tokens that this rank samples."""
        ours = self.ours.device_sampler
        return None if ours is None else LeadingSampler(ours, self.followers)

    def run(self, plan: Plan) -> ForwardOutput:
        """See Runner; every rank computes the same output."""
        self.followers.broadcast(RunPlan.of(plan))
        return self.ours.run(plan)


@dataclass(frozen=True, slots=True)
class LeadingHeadRunner:
    """See HeadRunner: sends each pass to the followers, and runs this rank's part."""

    ours: HeadRunner
    followers: FollowerLinks

    @property
    def draws(self) -> bool:
        """See HeadRunner."""
        return self.ours.draws

    def run(self, plan: Plan, rows: Sequence[range], hidden: Tensor | None) -> ForwardOutput:
        """See HeadRunner."""
        self.followers.broadcast(RunHead.of(plan, rows, again=hidden is None))
        return self.ours.run(plan, rows, hidden)


@dataclass(frozen=True, slots=True)
class LeadingSampler:
    """See DeviceSampler: tells the followers to receive tokens, which no plan has told them."""

    ours: DeviceSampler
    followers: FollowerLinks

    def draw(self, logits: Tensor, drawing: SamplingPlan) -> PendingTokens:
        """See DeviceSampler."""
        self.followers.broadcast(ReceiveTokens(len(drawing.draws)))
        return self.ours.draw(logits, drawing)

    def mark(self) -> HostCopy:
        """See DeviceSampler; as for `wait`, ours is enough."""
        return self.ours.mark()

    def wait(self) -> None:
        """Wait for our device, whose last collective comes after all the followers' writes."""
        self.ours.wait()


@dataclass(frozen=True, slots=True)
class LeadingModel:
    """See Model, for the calls other than running plans."""

    ours: Decoder
    followers: FollowerLinks
    group: RankGroup

    @property
    def config(self) -> ModelShape:
        """This rank's config; the sizes that an engine reads are those of the whole model."""
        return self.ours.config

    @property
    def kv_shape(self) -> KvShape:
        """The KV of this rank's part."""
        return self.ours.kv_shape

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """See Model; the followers run the same plan."""
        return self.ours.forward(tokens, batch)

    def logits(self, hidden: Tensor) -> Tensor:
        """See Model; the followers are told, and get the rows by a broadcast."""
        self.followers.broadcast(ComputeLogits(len(hidden)))
        return self.ours.logits(self.group.broadcast(hidden.contiguous()))
