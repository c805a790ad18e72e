"""Uploads numbers of several kinds to a device by one copy, without waiting for it.

Parts begin at multiples of 16 bytes, because Triton compiles kernels anew for unaligned
pointers.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 4  # numbers of 4 bytes each: 16 bytes
Part = NDArray[np.int32] | NDArray[np.float32]


def uploaded(parts: Sequence[Part], device: torch.device) -> list[Tensor]:
    """The parts as flat views of one tensor on the device, int32 or float32."""
    sizes = [part.size for part in parts]
    starts = list(accumulate(map(aligned, sizes), initial=0))
    staged = torch.empty(starts[-1], dtype=torch.int32, pin_memory=device.type == "cuda")
    here = staged.numpy()
    for start, part in zip(starts, parts, strict=False):
        here[start : start + part.size] = part.reshape(-1).view(np.int32)
    there = staged.to(device, non_blocking=True)
    return [
        there[start : start + part.size].view(
            torch.float32 if part.dtype == np.float32 else torch.int32
        )
        for start, part in zip(starts, parts, strict=False)
    ]


def aligned(numbers: int) -> int:
    """`numbers`, rounded up so that the next part is aligned."""
    return -(-numbers // ALIGNED) * ALIGNED
