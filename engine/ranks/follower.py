"""A follower rank: runs every plan that the leader sends, and samples nothing."""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.models.decoder import Decoder
from engine.ranks.channel import Channel
from engine.ranks.links import DONE
from engine.ranks.messages import (
    ClearBehind,
    ComputeLogits,
    ReceiveTokens,
    RunHead,
    RunPlan,
    decode,
)
from engine.running.device_sampler import KernelSampler
from engine.running.head_runner import HeadRunner
from engine.running.runner import Runner
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True)
class Follower:
    """This rank's part of the weights and the KV memory, until the leader closes its end."""

    decoder: Decoder
    memory: KvMemory
    runner: Runner
    group: RankGroup
    channel: Channel
    head: HeadRunner | None = None

    def report(self) -> None:
        """Report to the leader that this rank is loaded, and where its KV memory is."""
        (region,) = self.memory.regions
        self.channel.send(msgspec.msgpack.encode(region))
        self.group.set_stall_timeout()

    @torch.inference_mode()
    def run(self) -> None:
        """Act on the leader's messages in order, until it closes the channel."""
        hidden: Tensor | None = None
        while (frame := self.channel.receive()) is not None:
            message = decode(frame)
            if isinstance(message, RunPlan):
                hidden = self.runner.run(message.read()).hidden
            elif isinstance(message, RunHead):
                assert self.head is not None, "ours has one, as the leader's has"
                states = None if message.again else hidden
                self.head.run(message.plan.read(), message.read_rows(), states)
            elif isinstance(message, ComputeLogits):
                self._logits(message.rows)
            elif isinstance(message, ReceiveTokens):
                device_sampler = self.runner.device_sampler
                assert isinstance(device_sampler, KernelSampler), (
                    "ours draws, as the leader's does"
                )
                device_sampler.share(message.count)
            else:
                self._clear_behind(message)

    def _logits(self, rows: int) -> None:
        memory, size = self.memory, self.decoder.config.hidden_size
        room = torch.empty(rows, size, dtype=memory.dtype, device=memory.block_rows.device)
        self.decoder.logits(self.group.broadcast(room))

    def _clear_behind(self, order: ClearBehind) -> None:
        self.memory.clear_behind(order.block, order.tokens)
        if self.memory.block_rows.is_cuda:
            torch.cuda.synchronize(self.memory.block_rows.device)
        self.channel.send(DONE)
