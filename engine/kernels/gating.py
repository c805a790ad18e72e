"""Gates that are not part of a product, in plain torch."""

from torch import Tensor


def sigmoid_gated(rows: Tensor, gates: Tensor) -> Tensor:
    """See Kernels in engine/kernels/contract.py. Two launches on a device."""
    return rows * gates.sigmoid()
