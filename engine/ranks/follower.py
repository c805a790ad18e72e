"""A rank that follows: it makes every step that it is told of, and samples nothing."""

from dataclasses import dataclass

import msgspec
import torch

from engine.attention.kv_memory import KvMemory
from engine.models.decoder import Decoder
from engine.ranks.channel import Channel
from engine.ranks.crew import DONE
from engine.ranks.steps import ClearBehind, Drawn, Logits, Step, decode
from engine.running.drawing import DeviceDrawer
from engine.running.runner import Runner
from engine.sharding.group import Group


@dataclass(frozen=True, slots=True)
class Follower:
    """Our part of the weights and of the KV memory, until the leader's end is closed."""

    decoder: Decoder
    memory: KvMemory
    runner: Runner
    group: Group
    channel: Channel

    def report(self) -> None:
        """All is loaded: say where our memory is."""
        (region,) = self.memory.regions
        self.channel.send(msgspec.msgpack.encode(region))
        self.group.go()

    @torch.inference_mode()
    def run(self) -> None:
        """What the leader says, in its order."""
        while (frame := self.channel.receive()) is not None:
            message = decode(frame)
            if isinstance(message, Step):
                self.runner.run(message.read())
            elif isinstance(message, Logits):
                self._logits(message.rows)
            elif isinstance(message, Drawn):
                drawer = self.runner.drawer
                assert isinstance(drawer, DeviceDrawer), "ours draws, as the leader's does"
                drawer.share(message.count)
            else:
                self._clear_behind(message)

    def _logits(self, rows: int) -> None:
        memory, size = self.memory.block_rows, self.decoder.config.hidden_size
        room = torch.empty(rows, size, dtype=memory.dtype, device=memory.device)
        self.decoder.logits(self.group.told(room))

    def _clear_behind(self, order: ClearBehind) -> None:
        self.memory.clear_behind(order.block, order.tokens)
        if self.memory.block_rows.is_cuda:
            torch.cuda.synchronize(self.memory.block_rows.device)
        self.channel.send(DONE)
