"""Rows of activations, the inputs of matrix products: whole, quantized to fp8, or both."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

E4M3_MAX = 448.0  # of float8_e4m3fn, which has no infinity
LEAST_SCALE = 2.0**-100
E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Rows that a norm or gate has quantized to fp8, for products with fp8 weights.

    `dtype` is the dtype before quantization, and that of the product's output. `group` numbers
    of a row share a scale; None: a whole row.
    """

    values: Tensor  # [rows, size] float8_e4m3fn
    scales: Tensor  # [rows, groups] float32: one for each group of a row's numbers
    dtype: torch.dtype
    group: int | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.values)

    def whole(self) -> Tensor:
        """[rows, size] dequantized, float32 or wider."""
        size, wide = self.values.shape[1], torch.promote_types(self.dtype, torch.float32)
        spread = self.scales.repeat_interleave(self.group or size, 1)[:, :size]
        return self.values.to(wide) * spread


@dataclass(frozen=True, slots=True, eq=False)
class DualRows:
    """Rows both whole, for a router, and quantized, for its experts."""

    whole: Tensor  # [rows, size]
    quantized: QuantizedRows  # the same rows

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of products' outputs."""
        return self.whole.dtype

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.whole)


Rows: TypeAlias = Tensor | QuantizedRows | DualRows


def whole_rows(rows: Rows) -> Tensor:
    """The whole rows, for a reader that never gets quantized rows alone."""
    if isinstance(rows, DualRows):
        return rows.whole
    assert isinstance(rows, Tensor), "rows of 8 bits are for weights of 8 bits"
    return rows


def already_quantized(rows: Rows, group: int | None) -> QuantizedRows | None:
    """The rows if already quantized with a scale for each `group`; None: quantize them now."""
    if isinstance(rows, DualRows):
        return rows.quantized if rows.quantized.group == group else None
    if isinstance(rows, QuantizedRows):
        assert rows.group == group, "quantized as this weight wants them"
        return rows
    return None


def quantize_rows_twin(rows: Tensor, group: int | None) -> QuantizedRows:
    """[rows, size] in fp8, with a scale for each row, or for each `group` numbers of it."""
    return QuantizedRows(*to_fp8(rows, group or rows.shape[1]), rows.dtype, group)


def to_fp8(rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """[rows, size] to float8_e4m3fn, and a float32 scale for each `group` numbers of a row."""
    count, size = rows.shape
    groups = -(-size // group)
    missing = groups * group - size
    padded = torch.nn.functional.pad(rows.float(), (0, missing)).view(count, groups, group)
    scales = _scales(padded.abs().amax(-1))
    values = (padded / scales.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)
    return values.view(count, -1)[:, :size].contiguous(), scales


def _scales(largest: Tensor) -> Tensor:
    """Scales with which the largest number just fits, but large enough to divide by.

    Divided by a tensor: a GPU multiplies by the inverse of a number, which is rounded.
    """
    return (largest / torch.full_like(largest, E4M3_MAX)).clamp(min=LEAST_SCALE)
