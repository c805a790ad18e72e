"""Matrix products with weights that never change.

oneDNN multiplies bfloat16 in tiles, and repacks a weight for each product unless it is stored
that way; for a batch of decode steps that is as much work as the product itself. So on a CPU
with bfloat16 instructions the weights are packed once, when they are loaded; results are the
same.

Up to FEW rows a product is bound by reading its weight, and our own kernel is faster
(engine/kernels/cpu/native/products.cpp). It reads oneDNN's layout, so no weight is stored
twice.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.contract import Kernels
from engine.kernels.contract import Linear as Linear
from engine.kernels.cpu.few_rows import FewRows
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.rows import Rows, whole_rows

FEW = 32


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """The weight as it is in the checkpoint, on any device."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, inputs: Rows) -> Tensor:
        """See Linear."""
        return F.linear(whole_rows(inputs), self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The weight in oneDNN's own layout, which is opaque to torch; `few` reads it too."""

    packed: Tensor
    bias: Tensor | None = None
    few: FewRows | None = None

    def __call__(self, inputs: Rows) -> Tensor:
        """See Linear."""
        inputs = whole_rows(inputs)
        if self.few is not None and len(inputs) <= FEW:
            return self.few(inputs)
        run = torch.ops.mkldnn._linear_pointwise  # has no public name; torch is pinned
        outputs: Tensor = run(inputs, self.packed, self.bias, "none", [], "")
        return outputs


def linear(
    weight: Tensor, bias: Tensor | None = None, kernels: Kernels | None = None
) -> Linear:
    """The fastest linear layer for this weight; a packed weight is a copy."""
    own = None if kernels is None else kernels.linear(weight, bias)
    if own is not None:
        return own
    halves = weight.device.type == "cpu" and weight.dtype is torch.bfloat16
    if halves and multiplies_halves(weight.dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        few = None
        if isinstance(kernels, CpuKernels):
            few = kernels.few_rows(packed, weight, bias)
        return PackedLinear(packed, bias, few)
    return PlainLinear(weight, bias)


def multiplies_halves(dtype: torch.dtype) -> bool:
    """Whether torch has more than a loop for products of this half precision on this CPU:
    oneDNN, and instructions that it needs.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
