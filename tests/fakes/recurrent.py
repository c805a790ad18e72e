"""A model of nothing but gated delta nets, which may note the blocks that it is given."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.device_batch import DeviceBatch
from engine.attention.kv_memory import KvMemory, KvShape, StateShape
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.recurrent import RecurrentInputs, RecurrentShape

LAYERS, BLOCK, VOCABULARY = 3, 4, 7
NET = RecurrentShape(1, 2, 4, 4, 2)
SHAPE = KvShape(1, 1, 16, state=StateShape(LAYERS, NET))


@dataclass(frozen=True)
class Sizes:
    vocab_size: int = VOCABULARY
    hidden_size: int = NET.values
    max_positions: int = 64


@dataclass
class Stateful:
    """See Model."""

    config: Sizes = field(default_factory=Sizes)
    kv_shape: KvShape = SHAPE
    taken: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(3)
        self.mixed = torch.randn(VOCABULARY, NET.channels + NET.values, generator=made)
        self.rates = torch.randn(VOCABULARY, 2 * NET.value_heads, generator=made)
        ones = torch.ones(NET.value_heads)
        taps = torch.randn(NET.channels, NET.taps + 1, generator=made)
        self.weights = DeltaWeights(NET, taps, -ones, ones, torch.ones(NET.value_width), 1e-6)

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        inputs = RecurrentInputs(self.mixed[tokens], self.rates[tokens])
        total = torch.zeros(len(tokens), NET.values)
        for layer in range(LAYERS):
            total = total + batch.recurrence(layer, self.weights, inputs)
            inputs = inputs._replace(mixed=inputs.mixed.roll(1, -1))
        return total

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden[:, :VOCABULARY].float()


class Noting(Stateful):
    """Notes which blocks a batch has, of KV and of states."""

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        assert isinstance(batch, DeviceBatch)
        of, used = batch.metadata, batch.metadata.lengths > 0
        tables = zip(of.tables[used], of.lengths[used], strict=True)
        kv = [table[: -(-int(length) // BLOCK)] for table, length in tables]
        self.taken.append([*torch.cat(kv).tolist(), *of.states[used].flatten().tolist()])
        return super().forward(tokens, batch)


def memory_of(blocks: int) -> KvMemory:
    """What nobody wrote is no number."""
    memory = KvMemory(SHAPE, blocks, BLOCK, torch.float32, torch.device("cpu"))
    memory.block_rows.fill_(torch.nan)
    return memory
