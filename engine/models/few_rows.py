"""A layer's halves for few rows: norms, gate and residuals are fused with the matrix products.

A decode step of few sequences takes as long as reading its weights, plus the gaps between its
launches. Fusion (engine/kernels/gpu/few_rows.py) leaves seven of a dense layer's ten launches.
Each half, attention or MLP, is computed this way or as it is for many rows, whatever the other
one is. Experts are in few_row_experts.py.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from engine.attention.batch import Batch
from engine.checkpoints.linear import PlainLinear
from engine.checkpoints.storage import StoredLinear
from engine.kernels.contract import Kernels
from engine.kernels.fusion import NO_FUSION, FewRowProducts, Fusion, Gate, Residual, RowNorm
from engine.kernels.weights import Fp8Weight
from engine.lora.active import ActiveAdapters
from engine.lora.linear import LoraLinear
from engine.models.grouped_attention import GroupedAttention
from engine.models.layer import Attention, Mlp
from engine.models.mlp import GatedMlp
from engine.models.norm import LayerNorm
from engine.models.rope import Rotations


class FewRowsLinear(NamedTuple):
    """What a product of few rows reads of a linear layer."""

    weight: Tensor | Fp8Weight
    bias: Tensor | None  # [outputs]


@dataclass(frozen=True, slots=True, eq=False)
class FusedProducts:
    """The fused products of a model, and what all of its halves have in common."""

    products: FewRowProducts
    residual_scale: float
    adapters: ActiveAdapters | None = None

    def takes(self, rows: int, *linears: FewRowsLinear) -> bool:
        """Whether so many rows are few for all of these; rows with adapters never are.

        They go through the layers that have their adapters.
        """
        if self.adapters is not None and self.adapters.rows is not None:
            return False
        most = (self.products.most(linear.weight) for linear in linears)
        return rows <= min(most, default=self.products.most_rows)

    def multiply(
        self, linear: FewRowsLinear, rows: Tensor, fusion: Fusion = NO_FUSION
    ) -> Tensor:
        """See FewRowProduct."""
        return self.products.multiply(rows, linear.weight, linear.bias, fusion)

    def residual(self, hidden: Tensor) -> Residual:
        """`hidden`, to which a half's result is added."""
        return Residual(hidden, self.residual_scale)


@dataclass(frozen=True, slots=True, eq=False)
class FewRowsAttention:
    """See FewRowsAttention in engine/models/decoder.py.

    `inward` makes queries, keys and values, and `outward` the output of attention;
    `attention.read` computes what is between them.
    """

    fused: FusedProducts
    norm: RowNorm
    inward: FewRowsLinear
    attention: GroupedAttention
    outward: FewRowsLinear

    def takes(self, rows: int) -> bool:
        """See FewRowsAttention, here and below."""
        return self.fused.takes(rows, self.inward, self.outward)

    def __call__(self, hidden: Tensor, rotations: Rotations, batch: Batch) -> Tensor:
        """See FewRowsAttention."""
        mixed = self.fused.multiply(self.inward, hidden, Fusion(norm=self.norm))
        read = self.attention.read(mixed, rotations, batch)
        onto = Fusion(residual=self.fused.residual(hidden))
        return self.fused.multiply(self.outward, read, onto)


@dataclass(frozen=True, slots=True, eq=False)
class FewRowsGatedMlp:
    """See FewRowsMlp in engine/models/decoder.py; also a shared expert."""

    fused: FusedProducts
    norm: RowNorm
    gate_up: FewRowsLinear
    gate: Gate
    down: FewRowsLinear

    def takes(self, rows: int) -> bool:
        """See FewRowsMlp, here and below."""
        return self.fused.takes(rows, self.gate_up, self.down)

    def __call__(self, hidden: Tensor) -> Tensor:
        """See FewRowsMlp."""
        thought = self.fused.multiply(self.gate_up, hidden, Fusion(self.norm, self.gate))
        onto = Fusion(residual=self.fused.residual(hidden))
        return self.fused.multiply(self.down, thought, onto)


def few_rows_attention(
    fused: FusedProducts, attention: Attention | None, norm: LayerNorm | None
) -> FewRowsAttention | None:
    """The fused half; None if not possible: its weights must be unquantized or in fp8."""
    if norm is None or not isinstance(attention, GroupedAttention):
        return None
    inward, outward = (
        few_rows_linear(attention.query_key_value),
        few_rows_linear(attention.output),
    )
    if inward is None or outward is None:
        return None
    return FewRowsAttention(fused, row_norm(norm), inward, attention, outward)


def few_rows_gated_mlp(
    fused: FusedProducts, mlp: Mlp | None, norm: RowNorm, gate: Gate, kernels: Kernels
) -> FewRowsGatedMlp | None:
    """Likewise; the kernels must support `gate`."""
    if not isinstance(mlp, GatedMlp) or gate.activation not in kernels.gates:
        return None
    gate_up, down = few_rows_linear(mlp.gate_up), few_rows_linear(mlp.down)
    if gate_up is None or down is None:
        return None
    return FewRowsGatedMlp(fused, norm, gate_up, gate, down)


def row_norm(norm: LayerNorm) -> RowNorm:
    """What a fused product reads of a norm."""
    return RowNorm(norm.weight, norm.eps)


def few_rows_linear(product: object) -> FewRowsLinear | None:
    """The product without its adapters; None if its weight is in another format."""
    product = product.base if isinstance(product, LoraLinear) else product
    if isinstance(product, PlainLinear):
        return FewRowsLinear(product.weight, product.bias)
    if isinstance(product, StoredLinear) and isinstance(product.weight, Fp8Weight):
        return FewRowsLinear(product.weight, None if product.bias is None else product.bias[0])
    return None
