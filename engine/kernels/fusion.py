"""Contracts of products that are fused with what surrounds them, for steps of few rows.

Such a step is bound by reading weights, so the gaps between launches are what fusion saves.
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from engine.kernels.weights import Fp8Weight


class RowNorm(NamedTuple):
    """An RMS norm of the input rows, fused before a product: x / rms(x) * weight."""

    weight: Tensor  # [inputs]
    eps: float


class Gate(NamedTuple):
    """An activation and gate, fused behind a product of gates and ups.

    See Kernels.gated in engine/kernels/contract.py.
    """

    activation: str
    clamp: tuple[float, float] | None = None


class Residual(NamedTuple):
    """A residual to which the product, times `scale`, is added."""

    rows: Tensor
    scale: float


class Fusion(NamedTuple):
    """What is fused with a product: a norm before it, then a gate and a residual behind it."""

    norm: RowNorm | None = None
    gate: Gate | None = None
    residual: Residual | None = None


NO_FUSION = Fusion()


class FewRowProduct(Protocol):
    """A product of few rows, fused with norm, gate and residual.

    The weight is unquantized, or in fp8. Then the normed rows are quantized like it.
    """

    def __call__(
        self,
        rows: Tensor,
        weight: Tensor | Fp8Weight,
        bias: Tensor | None = None,
        fusion: Fusion = NO_FUSION,
    ) -> Tensor:
        """[rows, inputs] by [outputs, inputs] to [rows, outputs]; behind a gate, half of them.

        `bias` [outputs] is the product's own. An Fp8Weight has one expert.
        """


class Choice(NamedTuple):
    """Each token's experts, and their weights in its sum."""

    weights: Tensor  # [tokens, top_k] float32
    experts: Tensor  # [tokens, top_k] int64


class ExpertWeights(NamedTuple):
    """One linear layer of several experts, unquantized."""

    weight: Tensor  # [experts, outputs, inputs]
    bias: Tensor | None  # [experts, outputs]


class FewRowScores(Protocol):
    """A router's scores of few rows, fused with the norm before."""

    def __call__(
        self, rows: Tensor, weight: Tensor, bias: Tensor | None, norm: RowNorm | None
    ) -> Tensor:
        """[rows, inputs] by [experts, inputs] to [rows, experts], in the dtype of `weight`."""


class FewRowMixture(Protocol):
    """What few rows' experts make of them, fused with norm, gate, weighted sum and residual."""

    def __call__(
        self,
        rows: Tensor,
        choice: Choice,
        gate_up: ExpertWeights,
        down: ExpertWeights,
        fusion: Fusion,
    ) -> Tensor:
        """[rows, hidden] to the same; `gate_up` [experts, 2 * width, hidden], gates first.

        The fusion has a gate, which is between the products; its norm is before both.
        """


class FewRowProducts(NamedTuple):
    """Fused products for decode steps of few rows: up to `most_rows`, or `most_fp8_rows` if a
    weight is in fp8.
    """

    multiply: FewRowProduct
    score: FewRowScores
    mix: FewRowMixture
    most_rows: int
    most_fp8_rows: int

    def most(self, weight: Tensor | Fp8Weight) -> int:
        """How many rows are few for a product with `weight`."""
        return self.most_fp8_rows if isinstance(weight, Fp8Weight) else self.most_rows
