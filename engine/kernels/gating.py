"""Gates that are not part of a product, and what is in their place, in plain torch."""

import torch
from torch import Tensor


def sigmoid_gated(rows: Tensor, gates: Tensor) -> Tensor:
    """See Kernels in engine/kernels/contract.py. Two launches on a device."""
    return rows * gates.sigmoid()


def squared_relu(rows: Tensor) -> Tensor:
    """Likewise."""
    return torch.relu(rows).square()
