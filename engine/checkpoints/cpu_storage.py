"""Linear layers of quantized weights on a CPU, by its compiled kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.checkpoints.linear import Linear, linear
from engine.checkpoints.storage import LinearFactory
from engine.errors import KernelsUnavailable
from engine.kernels.cpu.few_bits import stays_packed
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.products import TorchProducts
from engine.kernels.weights import Weight


@dataclass(slots=True)
class CpuLinearFactory(LinearFactory):
    """See LinearFactory. Quantized weights stay packed, if this CPU has the instructions.

    If not, they are dequantized to `dtype`, the model's, when they are read, and cost as much
    as if they had been stored so.
    """

    dtype: torch.dtype = torch.bfloat16
    cpu: CpuKernels | None = None

    @property
    def stacks_experts(self) -> bool:
        """Each expert is a product of its own, which costs little on a CPU."""
        return False

    def packed(self, weight: Weight, bias: Tensor | None) -> Linear:
        """See LinearFactory."""
        ours = self.cpu
        if ours is not None and ours.multiplies_few_bits and stays_packed(weight):
            return ours.few_bits(weight, bias, self.dtype)
        return self.unquantized(weight.whole(0).to(self.dtype), bias)

    def unquantized(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """See LinearFactory."""
        return linear(weight, bias, self.cpu)


def cpu_storage(
    rounding: str | None, dtype: torch.dtype, kernels: CpuKernels | None
) -> CpuLinearFactory:
    """The factory for a CPU, whose `kernels` are None if they are not available.

    `rounding` is that of `--quantization`. Raises KernelsUnavailable if nothing would come of
    it here.
    """
    asked = f"--quantization {rounding}"
    if rounding is not None and (kernels is None or not kernels.multiplies_few_bits):
        raise KernelsUnavailable(f"{asked} needs the compiled kernels and AVX512-BF16")
    return CpuLinearFactory(TorchProducts(), rounding, dtype=dtype, cpu=kernels)
