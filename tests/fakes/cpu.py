"""What this CPU does, for tests of kernels that only some of them use."""

from functools import cache

import torch

from engine.kernels.cpu import build
from engine.kernels.cpu.native import CpuKernels


@cache
def packs_as_we_read() -> bool:
    """Whether our products of a few rows can read what oneDNN packs: not where it multiplies
    tiles, or where there are no instructions for bfloat16.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    weight = torch.randn(128, 64).bfloat16()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    return CpuKernels(build.library()).few_rows(packed, weight, None) is not None
