"""Two parts of one layer that mix tokens side by side: attention, and what keeps a state.

Both read the layer's normed input, and what they make is added up (Falcon-H1). Each has an
index of its own: of the layers with KV, and of those with a state.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.attention.batch import Batch
from engine.kernels.rows import Rows
from engine.models.layer import Attention
from engine.models.rope import Rotations

Adding = Callable[[Tensor, Tensor], Tensor]
"""Rows and others, [tokens, size] each, to their sums; see `added` of Kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """An attention, and a layer that keeps a state, which is called alike."""

    attention: Attention
    recurrent: Attention
    added: Adding

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """See Attention in engine/models/layer.py."""
        kept = self.recurrent(normed, rotations, batch)
        return self.added(kept, self.attention(normed, rotations, batch))
