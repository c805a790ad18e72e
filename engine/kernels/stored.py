"""KV memory of one byte a number: float8_e4m3fn, for models that compute in a wider type."""

import torch
from torch import Tensor

from engine.kernels.rows import E4M3, E4M3_MAX


def to_stored(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of keys or values in the type that KV memory has; in E4M3 what is beyond its largest
    number becomes that.
    """
    return (rows.clamp(-E4M3_MAX, E4M3_MAX) if dtype is E4M3 else rows).to(dtype)


def take(rows: Tensor, index: Tensor) -> Tensor:
    """The rows of these numbers, as `index_select`, of any type on any device."""
    return copyable(rows).index_select(0, index).view(rows.dtype)


def copyable(rows: Tensor) -> Tensor:
    """Numbers of one byte as bytes, which torch can copy by index; others as they are."""
    return rows.view(torch.uint8) if rows.itemsize == 1 else rows
