"""A layer of few rows: norms, gate and residuals are fused with the matrix products.

A decode step of few sequences takes as long as reading its weights, plus the gaps between its
launches. Fusion (engine/kernels/gpu/few_rows.py) leaves seven of a layer's ten launches.
"""

from dataclasses import dataclass

from torch import Tensor

from engine.attention.batch import Batch
from engine.checkpoints.linear import PlainLinear
from engine.kernels.contract import FewRowProducts, Fusion, Gate, Kernels, Residual, RowNorm
from engine.lora.active import ActiveAdapters
from engine.lora.linear import LoraLinear
from engine.models.decoder import Attention, Mlp
from engine.models.grouped_attention import GroupedAttention
from engine.models.mlp import GatedMlp
from engine.models.norm import LayerNorm, Norm
from engine.models.rope import Rotations


@dataclass(frozen=True, slots=True, eq=False)
class FewRowsLayer:
    """See FewRowsPath in engine/models/decoder.py.

    `inward` makes queries, keys and values, and `outward` the output of attention;
    `attention.read` computes what is between them.
    """

    products: FewRowProducts
    attention_norm: RowNorm
    inward: PlainLinear
    attention: GroupedAttention
    outward: PlainLinear
    mlp_norm: RowNorm
    gate_up: PlainLinear
    gate: Gate
    down: PlainLinear
    residual_scale: float
    adapters: ActiveAdapters | None = None

    def takes(self, rows: int) -> bool:
        """See FewRowsPath. Rows with adapters go through the layers that have them."""
        adapted = self.adapters is not None and self.adapters.rows is not None
        return rows <= self.products.most_rows and not adapted

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

    def _product(self, linear: PlainLinear, rows: Tensor, fusion: Fusion) -> Tensor:
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

    All weights must be unquantized, and the kernels must support `activation`.
    """
    products = None if kernels is None else kernels.few_row_products
    if products is None or kernels is None or activation not in kernels.gates:
        return None
    (attention, mlp), (first, second) = parts, norms
    if not isinstance(attention, GroupedAttention) or not isinstance(mlp, GatedMlp):
        return None
    if not isinstance(first, Norm) or not isinstance(second, Norm):
        return None
    inward, outward = _plain(attention.query_key_value), _plain(attention.output)
    gate_up, down = _plain(mlp.gate_up), _plain(mlp.down)
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


def _plain(product: object) -> PlainLinear | None:
    """The unquantized product, without its adapters."""
    product = product.base if isinstance(product, LoraLinear) else product
    return product if isinstance(product, PlainLinear) else None
