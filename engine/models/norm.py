"""RMS normalisation (Zhang and Sennrich 2019)."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.contract import DualOutputNorms, Kernels, QuantizedOutputKernels
from engine.kernels.rows import Rows


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """x / rms(x) * weight over the last dimension.

    A float32 weight in a model of half precision is one that rounding would damage (Gemma's
    1 + w): then the whole norm is computed in float32, and rounded once.
    """

    weight: Tensor
    eps: float
    kernels: Kernels | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """[tokens, size] or [tokens, heads, size] to the same, in the same dtype."""
        size, dtype = self.weight.shape, inputs.dtype
        if self.kernels is not None:
            return self.kernels.norm(inputs, self.weight, self.eps)
        if self.weight.dtype is dtype:
            return F.rms_norm(inputs, size, self.weight, self.eps)
        return F.rms_norm(inputs.to(torch.float32), size, self.weight, self.eps).to(dtype)

    def add(self, inputs: Tensor, residual: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """The norm of residual + scale * inputs, and that sum; all [tokens, size]."""
        if self.kernels is not None:
            return self.kernels.add_norm(inputs, residual, self.weight, self.eps, scale)
        added = residual.add(inputs, alpha=scale)
        return self(added), added


@dataclass(frozen=True, slots=True, eq=False)
class RoundedNorm:
    """A norm whose output is quantized for products with fp8 weights.

    Depending on `kernels`, the output has the unquantized rows as well, for other readers.
    """

    weight: Tensor
    eps: float
    kernels: QuantizedOutputKernels | DualOutputNorms

    def __call__(self, inputs: Tensor) -> Rows:
        """[tokens, size]."""
        return self.kernels.norm(inputs, self.weight, self.eps)

    def add(self, inputs: Tensor, residual: Tensor, scale: float) -> tuple[Rows, Tensor]:
        """See Norm."""
        return self.kernels.add_norm(inputs, residual, self.weight, self.eps, scale)


LayerNorm: TypeAlias = Norm | RoundedNorm


def norm_before(
    kernels: QuantizedOutputKernels | DualOutputNorms | None, norm: Norm
) -> LayerNorm:
    """`norm` with its output quantized by `kernels`; None: the product takes whole rows."""
    return norm if kernels is None else RoundedNorm(norm.weight, norm.eps, kernels)


def normed(norm: Norm | None, inputs: Tensor) -> Tensor:
    """`inputs` after `norm`, or unchanged if a family has no norm there."""
    return inputs if norm is None else norm(inputs)


def add_normed(
    norm: LayerNorm | None, inputs: Tensor | None, residual: Tensor, scale: float
) -> tuple[Rows, Tensor]:
    """Add scaled `inputs` to the residual; returns a part's input (its norm) and the sum.

    Without a norm, or with nothing to add, that step is left out.
    """
    if inputs is None:
        return residual if norm is None else norm(residual), residual
    if norm is not None:
        return norm.add(inputs, residual, scale)
    added = residual.add(inputs, alpha=scale)
    return added, added
