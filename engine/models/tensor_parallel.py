"""Tensor-parallel parts of layers: each rank computes a part, then all-reduces or gathers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.batch import Batch
from engine.kernels.contract import Linear
from engine.kernels.rows import Rows, whole_rows
from engine.models.layer import Attention, Mlp
from engine.models.norm import Norm
from engine.models.rope import Rotations
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True, eq=False)
class ParallelAttention:
    """Each rank has some heads; the outputs are summed by an all-reduce."""

    ours: Attention
    group: RankGroup

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/layer.py."""
        return self.group.all_reduce(self.ours(normed, rotations, batch))


@dataclass(frozen=True, slots=True, eq=False)
class ParallelMlp:
    """Each rank has some intermediate columns, or some experts; all-reduced."""

    ours: Mlp
    group: RankGroup

    def __call__(self, normed: Rows) -> Tensor:
        """See Mlp in engine/models/layer.py."""
        return self.group.all_reduce(self.ours(normed))


@dataclass(frozen=True, slots=True, eq=False)
class ParallelNorm(Norm):
    """RMS over all heads, of which each rank has equally many; `weight` is this rank's part.

    If ranks have copies of KV heads, all heads have equally many, so the mean is the same.
    """

    group: RankGroup | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """[tokens, our size] or [tokens, heads, size] to the same; computed in float32."""
        assert self.group is not None
        ours = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        mean = (
            self.group.all_reduce(ours.square().mean(-1, keepdim=True)) / self.group.shard.size
        )
        return (ours * torch.rsqrt(mean + self.eps) * self.weight).to(inputs.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class VocabParallelHead:
    """Each rank has some rows of the vocabulary; the logits are all-gathered."""

    ours: Linear
    words: int
    group: RankGroup

    def __call__(self, inputs: Rows) -> Tensor:
        """See Linear in engine/kernels/contract.py."""
        return self.group.all_gather_columns(self.ours(inputs), self.words)


@dataclass(frozen=True, slots=True)
class AbsentExpert:
    """A product of another rank's expert: zeros."""

    outputs: int

    def __call__(self, inputs: Rows) -> Tensor:
        """See Linear in engine/kernels/contract.py."""
        return whole_rows(inputs).new_zeros(1, 1).expand(len(inputs), self.outputs)
