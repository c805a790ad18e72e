"""A layer of few rows: norms, gate and residuals are fused with the matrix products.

A decode step of few sequences takes as long as reading its weights, plus the gaps between its
launches. Fusion (engine/kernels/gpu/few_rows.py) leaves seven of a layer's ten launches.
"""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from engine.attention.batch import Batch
from engine.checkpoints.linear import PlainLinear
from engine.checkpoints.storage import StoredLinear
from engine.kernels.contract import Kernels
from engine.kernels.fusion import FewRowProducts, Fusion, Gate, Residual, RowNorm
from engine.kernels.weights import Fp8Weight
from engine.lora.active import ActiveAdapters
from engine.lora.linear import LoraLinear
from engine.models.decoder import Attention, Mlp
from engine.models.grouped_attention import GroupedAttention
from engine.models.mlp import GatedMlp
from engine.models.norm import LayerNorm
from engine.models.rope import Rotations


class FewRowsLinear(NamedTuple):
    """What a product of few rows reads of a linear layer."""

    weight: Tensor | Fp8Weight
    bias: Tensor | None  # [outputs]


@dataclass(frozen=True, slots=True, eq=False)
class FewRowsLayer:
    """See FewRowsPath in engine/models/decoder.py.

    `inward` makes queries, keys and values, and `outward` the output of attention;
    `attention.read` computes what is between them.
    """

    products: FewRowProducts
    attention_norm: RowNorm
    inward: FewRowsLinear
    attention: GroupedAttention
    outward: FewRowsLinear
    mlp_norm: RowNorm
    gate_up: FewRowsLinear
    gate: Gate
    down: FewRowsLinear
    residual_scale: float
    adapters: ActiveAdapters | None = None

    def takes(self, rows: int) -> bool:
        """See FewRowsPath. Rows with adapters go through the layers that have them."""
        adapted = self.adapters is not None and self.adapters.rows is not None
        return rows <= self.most_rows and not adapted

    @property
    def most_rows(self) -> int:
        """The most rows that are few for all of its products."""
        linears = self.inward, self.outward, self.gate_up, self.down
        return min(self.products.most(linear.weight) for linear in linears)

    def forward(
        self, hidden: Tensor, made: Tensor | None, rotations: Rotations, batch: Batch
    ) -> tuple[Tensor, None]:
        """See FewRowsPath."""
        if made is not None:
            hidden = hidden.add(made, alpha=self.residual_scale)
        mixed = self._product(self.inward, hidden, Fusion(norm=self.attention_norm))
        read = self.attention.read(mixed, rotations, batch)
        hidden = self._product(self.outward, read, self._onto(hidden))
        thought = self._product(self.gate_up, hidden, Fusion(self.mlp_norm, self.gate))
        return self._product(self.down, thought, self._onto(hidden)), None

    def _product(self, linear: FewRowsLinear, rows: Tensor, fusion: Fusion) -> Tensor:
        return self.products.multiply(rows, linear.weight, linear.bias, fusion)

    def _onto(self, hidden: Tensor) -> Fusion:
        return Fusion(residual=Residual(hidden, self.residual_scale))


def few_rows_layer(
    kernels: Kernels | None,
    parts: tuple[Attention, Mlp],
    norms: tuple[LayerNorm | None, LayerNorm | None],
    activation: str,
    residual_scale: float,
    adapters: ActiveAdapters | None = None,
) -> FewRowsLayer | None:
    """The fused computation of a layer with norms before its parts only; None if not possible.

    All weights must be unquantized or in fp8, and the kernels must support `activation`.
    """
    products = None if kernels is None else kernels.few_row_products
    if products is None or kernels is None or activation not in kernels.gates:
        return None
    (attention, mlp), (first, second) = parts, norms
    if not isinstance(attention, GroupedAttention) or not isinstance(mlp, GatedMlp):
        return None
    if first is None or second is None:
        return None
    inward, outward = _linear(attention.query_key_value), _linear(attention.output)
    gate_up, down = _linear(mlp.gate_up), _linear(mlp.down)
    if inward is None or outward is None or gate_up is None or down is None:
        return None
    return FewRowsLayer(
        products,
        RowNorm(first.weight, first.eps),
        inward,
        attention,
        outward,
        RowNorm(second.weight, second.eps),
        gate_up,
        Gate(activation),
        down,
        residual_scale,
        adapters,
    )


def _linear(product: object) -> FewRowsLinear | None:
    """The product without its adapters; None if its weight is in another format."""
    product = product.base if isinstance(product, LoraLinear) else product
    if isinstance(product, PlainLinear):
        return FewRowsLinear(product.weight, product.bias)
    if isinstance(product, StoredLinear) and isinstance(product.weight, Fp8Weight):
        return FewRowsLinear(product.weight, None if product.bias is None else product.bias[0])
    return None
