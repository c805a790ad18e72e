"""A layer's experts for few rows, whose tokens are not sorted by expert.

With fused products (engine/kernels/gpu/few_row_experts.py) norm, router, choice, experts, their
weighted sum and the residual are four launches, and two more with a shared expert.
"""

from dataclasses import dataclass

from torch import Tensor

from engine.checkpoints.storage import ExpertStack
from engine.kernels.contract import Kernels
from engine.kernels.fusion import Choice, ExpertWeights, Fusion, Gate, RowNorm
from engine.kernels.weights import PlainWeight
from engine.models.experts import Router, SparseMlp, StackedExperts
from engine.models.few_rows import (
    FewRowsGatedMlp,
    FusedProducts,
    few_rows_gated_mlp,
    row_norm,
)
from engine.models.layer import FewRowsMlp, Mlp
from engine.models.norm import LayerNorm


@dataclass(frozen=True, slots=True, eq=False)
class FewRowsExperts:
    """See FewRowsMlp in engine/models/decoder.py.

    `shared`, if there is one, adds its result to the residual before the routed experts do.
    """

    fused: FusedProducts
    norm: RowNorm
    router: Router
    gate_up: ExpertWeights
    gate: Gate
    down: ExpertWeights
    shared: FewRowsGatedMlp | None = None

    def takes(self, rows: int) -> bool:
        """See FewRowsMlp, here and below."""
        alone = self.shared is None or self.shared.takes(rows)
        return alone and self.fused.takes(rows)

    def __call__(self, hidden: Tensor) -> Tensor:
        """See FewRowsMlp."""
        router, products = self.router, self.fused.products
        scores = products.score(hidden, router.weight, router.bias, self.norm)
        choice = Choice(*router.choose(scores))
        onto = hidden if self.shared is None else self.shared(hidden)
        around = Fusion(self.norm, self.gate, self.fused.residual(onto))
        return products.mix(hidden, choice, self.gate_up, self.down, around)


def few_rows_mlp(
    fused: FusedProducts,
    mlp: Mlp | None,
    norm: LayerNorm | None,
    gates: tuple[Gate, Gate],
    kernels: Kernels,
) -> FewRowsMlp | None:
    """The fused half, dense or with experts; None if not possible.

    Experts must be unquantized and all on this rank, and a shared one must have no gate of its
    own. `gates` are those of a dense MLP or a shared expert, and of routed ones.
    """
    if norm is None:
        return None
    dense, routed = gates
    if not isinstance(mlp, SparseMlp):
        return few_rows_gated_mlp(fused, mlp, row_norm(norm), dense, kernels)
    if not isinstance(mlp.experts, StackedExperts) or routed.activation not in kernels.gates:
        return None
    gate_up, down = _whole(mlp.experts.gate_up), _whole(mlp.experts.down)
    if gate_up is None or down is None:
        return None
    shared = None
    if mlp.shared is not None:
        if mlp.shared.gate is not None:
            return None
        shared = few_rows_gated_mlp(fused, mlp.shared.mlp, row_norm(norm), dense, kernels)
        if shared is None:
            return None
    return FewRowsExperts(fused, row_norm(norm), mlp.router, gate_up, routed, down, shared)


def _whole(stack: ExpertStack) -> ExpertWeights | None:
    """The stack's numbers; None if they are quantized."""
    if not isinstance(stack.weight, PlainWeight):
        return None
    return ExpertWeights(stack.weight.values, stack.bias)
