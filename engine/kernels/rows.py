"""Rows as products multiply them: whole, or in numbers of 8 bits with their scales."""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

E4M3_MAX = 448.0  # of float8_e4m3fn, which has no infinity
LEAST_SCALE = 2.0**-100
E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """Rows that were rounded to 8 bits before they come to the product that wants them so.

    `dtype` is what they were rounded from, and what the product answers in.
    """

    values: Tensor  # [rows, size] float8_e4m3fn
    scales: Tensor  # [rows, groups] float32: numbers of a row share one in groups, or all do
    dtype: torch.dtype

    def __len__(self) -> int:
        """How many rows."""
        return len(self.values)

    def whole(self, group: int | None) -> Tensor:
        """[rows, size] of what they are worth, float32 or wider; `group` None: a row is one."""
        size, wide = self.values.shape[1], torch.promote_types(self.dtype, torch.float32)
        spread = self.scales.repeat_interleave(group or size, 1)[:, :size]
        return self.values.to(wide) * spread


Rows: TypeAlias = Tensor | Rounded


def plain(rows: Rows) -> Tensor:
    """Rows as they are, for what is never given others."""
    assert isinstance(rows, Tensor), "rows of 8 bits are for weights of 8 bits"
    return rows


def round_twin(rows: Tensor, group: int | None) -> Rounded:
    """[rows, size] in 8 bits, with a scale for each row, or for each `group` numbers of it."""
    return Rounded(*to_fp8(rows, group or rows.shape[1]), rows.dtype)


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
    """So that the largest number just fits, and never so small that dividing overflows."""
    return (largest / E4M3_MAX).clamp(min=LEAST_SCALE)
