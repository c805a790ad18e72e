"""What LoRA adapters add to a linear layer's outputs: the data, and plain torch.

    y = W x + B A x,    A and B of each row's own adapter       (Hu et al. 2021, "LoRA")

Kernel: engine/kernels/gpu/lora.py.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AdapterStack:
    """A and B of all adapters of one linear layer; zeros where an adapter has a lower rank."""

    down: Tensor  # [adapters, rank, inputs]
    up: Tensor  # [adapters, outputs, rank]


@dataclass(frozen=True, slots=True, eq=False)
class SortedRows:
    """A step's rows sorted by adapter, those without one last.

    Rows `order[offsets[a]] .. order[offsets[a + 1] - 1]` have adapter `a`.
    """

    order: Tensor  # [rows] int32
    offsets: Tensor  # [adapters + 1] int32


def add_adapters_twin(
    outputs: Tensor, inputs: Tensor, rows: SortedRows, stack: AdapterStack
) -> Tensor:
    """Add to `outputs` [rows, outputs] what each row's adapter makes of `inputs`; returns them.

    Summed in float32, or in float64 if `inputs` are; A's results are rounded to their dtype.
    """
    wide = torch.promote_types(inputs.dtype, torch.float32)
    for adapter, (first, end) in enumerate(pairwise(rows.offsets.tolist())):
        if first == end:
            continue
        down, up = stack.down[adapter].to(wide), stack.up[adapter].to(wide)
        if end - first == len(outputs):  # all rows have it, in whichever order
            outputs += _added(inputs, down, up)
            break
        ours = rows.order[first:end].long()
        outputs[ours] += _added(inputs[ours], down, up)
    return outputs


def _added(inputs: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """[rows, outputs] in the dtype of the factors."""
    inner = inputs.to(down.dtype) @ down.T
    return inner.to(inputs.dtype).to(up.dtype) @ up.T
