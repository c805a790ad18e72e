"""Rows as products multiply them: whole, in numbers of 8 bits with their scales, or both."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Both:
    """Rows that several read, a router among them: each takes them as it wants them."""

    whole: Tensor  # [rows, size]
    rounded: Rounded  # the same
    group: int | None  # that `rounded` is for

    @property
    def dtype(self) -> torch.dtype:
        """What products answer in."""
        return self.whole.dtype

    def __len__(self) -> int:
        """How many rows."""
        return len(self.whole)


Rows: TypeAlias = Tensor | Rounded | Both


def plain(rows: Rows) -> Tensor:
    """Rows as they are, for what is never given those of 8 bits alone."""
    if isinstance(rows, Both):
        return rows.whole
    assert isinstance(rows, Tensor), "rows of 8 bits are for weights of 8 bits"
    return rows


def rounded_before(rows: Rows, group: int | None) -> Rounded | None:
    """Rows in 8 bits, where they came so; None: they are to be rounded, with this `group`."""
    if isinstance(rows, Both):
        return rows.rounded if rows.group == group else None
    return rows if isinstance(rows, Rounded) else None


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
