"""A dense MLP and experts side by side, each with norms of its own around it (Gemma 4).

Both read the residual stream, and so does the router, which has a third norm before it. Their
outputs are normed, and added up.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from engine.kernels.rows import Rows, whole_rows
from engine.models.experts import Experts, Router
from engine.models.layer import Mlp
from engine.models.norm import LayerNorm, Norm
from engine.models.tensor_parallel import ParallelMlp
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True, eq=False)
class RoutedStream:
    """Experts with their router, and a norm before each: an Mlp over the residual stream."""

    router: Router
    router_norm: Norm
    experts: Experts
    norm: LayerNorm

    def __call__(self, normed: Rows) -> Tensor:
        """[tokens, hidden], which are not normed, to the same."""
        stream = whole_rows(normed)
        weights, chosen = self.router(self.router_norm(stream))
        return self.experts(self.norm(stream), weights, chosen)


@dataclass(frozen=True, slots=True, eq=False)
class DenseAndExperts:
    """Both as one Mlp over the residual stream."""

    dense: Mlp
    dense_norm: LayerNorm
    dense_output_norm: Norm
    routed: Mlp
    routed_output_norm: Norm

    def __call__(self, normed: Rows) -> Tensor:
        """[tokens, hidden], which are not normed, to the same."""
        stream = whole_rows(normed)
        dense = self.dense_output_norm(self.dense(self.dense_norm(stream)))
        return dense + self.routed_output_norm(self.routed(stream))


def parallel_mlp(mlp: Mlp, group: RankGroup) -> Mlp:
    """This rank's part of an Mlp, with the sum over ranks: before any norm of an output."""
    if not isinstance(mlp, DenseAndExperts):
        return ParallelMlp(mlp, group)
    dense, routed = ParallelMlp(mlp.dense, group), ParallelMlp(mlp.routed, group)
    return replace(mlp, dense=dense, routed=routed)
