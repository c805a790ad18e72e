"""Weights that never change, whole or rounded to 8 or 4 bits, and products with them in torch.

Every format holds one weight per expert; a dense layer's is that of its only expert. What is
here is plain torch and runs anywhere, slowly, as it takes a weight apart in each product: it is
the twin of the kernels in engine/kernels/gpu/products.py, and says what is right.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

BLOCK = 128  # inputs and outputs that share a scale in DeepSeek's checkpoints
GROUP = 128  # inputs that share a scale in weights of four bits
E4M3_MAX = 448.0  # of float8_e4m3fn, which has no infinity
LEAST_SCALE = 2.0**-100
FOUR_BITS, MIDDLE = 15, 8
E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True, eq=False)
class PlainWeight:
    """As it is in the checkpoint."""

    values: Tensor  # [experts, outputs, inputs]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, outputs, inputs."""
        experts, outputs, inputs = self.values.shape
        return experts, outputs, inputs

    def whole(self, expert: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One expert's numbers, [outputs, inputs]."""
        return self.values[expert].to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight:
    """Numbers of 8 bits (e4m3; Micikevicius et al. 2022) times scales.

    A scale belongs to an output, or, `blocked`, to BLOCK outputs by BLOCK inputs
    (DeepSeek-AI 2024, "DeepSeek-V3", section 3.3.2). Inputs are rounded likewise when they are
    multiplied: with a scale for each row, or for each BLOCK numbers of a row.
    """

    values: Tensor  # [experts, outputs, inputs] float8_e4m3fn
    scales: Tensor  # [experts, outputs, 1] or [experts, blocks, blocks] float32
    blocked: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, outputs, inputs."""
        experts, outputs, inputs = self.values.shape
        return experts, outputs, inputs

    def whole(self, expert: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One expert's numbers, [outputs, inputs]."""
        values, scales = self.values[expert].to(dtype), self.scales[expert].to(dtype)
        if self.blocked:
            scales = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            scales = scales[: values.shape[0], : values.shape[1]]
        return values * scales


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight:
    """Whole numbers 0 .. 15, less a zero, times a scale, both for each group of inputs.

    Byte j of a group has number j in its low half, and number j + group / 2 in its high one:
    a kernel that takes both halves apart has two runs of inputs, and none to interleave. What
    is missing in the last group is of no account. `zeros` None: MIDDLE everywhere.
    """

    packed: Tensor  # [experts, outputs, groups, group / 2] uint8
    scales: Tensor  # [experts, groups, outputs], any float
    zeros: Tensor | None  # [experts, groups, outputs] uint8
    inputs: int

    @property
    def group(self) -> int:
        """How many inputs share a scale."""
        return 2 * self.packed.shape[3]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, outputs, inputs."""
        return self.packed.shape[0], self.packed.shape[1], self.inputs

    def whole(self, expert: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One expert's numbers, [outputs, inputs]."""
        packed = self.packed[expert]
        numbers = torch.cat((packed & FOUR_BITS, packed >> 4), dim=-1).to(dtype)
        zeros = MIDDLE if self.zeros is None else self.zeros[expert].T.unsqueeze(-1).to(dtype)
        scaled = (numbers - zeros) * self.scales[expert].T.unsqueeze(-1).to(dtype)
        return scaled.flatten(1)[:, : self.inputs]


Weight: TypeAlias = PlainWeight | Fp8Weight | Int4Weight


class Products(Protocol):
    """Who multiplies: this file in plain torch, or kernels."""

    def multiply(self, rows: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """[rows, inputs] to [rows, outputs]: x W^T + b, with a weight of one expert."""

    def grouped(
        self,
        rows: Tensor,
        offsets: Tensor,
        weight: Weight,
        bias: Tensor | None = None,
        *,
        sources: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Rows sorted by expert, each times its own expert's weight.

        Expert e has the sorted rows offsets[e] .. offsets[e + 1] - 1, of `offsets`
        [experts + 1] int32. `sources` [rows] int32 says where in `rows` each of them is,
        `targets` [rows] int32 where its answer goes; both None: where it is.
        """


@dataclass(frozen=True, slots=True)
class TorchProducts:
    """See Products; slow, on any device."""

    def multiply(self, rows: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """See Products."""
        answer = rounded(rows, weight) @ weight.whole(0).T
        return (answer if bias is None else answer + bias[0].float()).to(rows.dtype)

    def grouped(
        self,
        rows: Tensor,
        offsets: Tensor,
        weight: Weight,
        bias: Tensor | None = None,
        *,
        sources: Tensor | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """See Products."""
        sorted_rows = rounded(rows, weight)
        sorted_rows = sorted_rows if sources is None else sorted_rows[sources.long()]
        answers = sorted_rows.new_empty(len(sorted_rows), weight.shape[1])
        firsts = offsets.tolist()
        for expert, (first, end) in enumerate(pairwise(firsts)):
            if first == end:
                continue
            answer = sorted_rows[first:end] @ weight.whole(expert).T
            answers[first:end] = answer if bias is None else answer + bias[expert].float()
        if targets is not None:
            answers = torch.empty_like(answers).index_copy_(0, targets.long(), answers)
        return answers.to(rows.dtype)


def rounded(rows: Tensor, weight: Weight) -> Tensor:
    """Inputs as they are multiplied with such a weight, float32."""
    if not isinstance(weight, Fp8Weight):
        return rows.float()
    group = BLOCK if weight.blocked else rows.shape[1]
    values, scales = to_fp8(rows, group)
    spread = scales.repeat_interleave(group, 1)[:, : rows.shape[1]]
    return values.float() * spread


def to_fp8(rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """[rows, size] to float8_e4m3fn, and a float32 scale for each `group` numbers of a row."""
    count, size = rows.shape
    groups = -(-size // group)
    missing = groups * group - size
    padded = torch.nn.functional.pad(rows.float(), (0, missing)).view(count, groups, group)
    scales = _scales(padded.abs().amax(-1))
    values = (padded / scales.unsqueeze(-1)).clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)
    return values.view(count, -1)[:, :size].contiguous(), scales


def fp8_weight(weight: Tensor, *, blocked: bool = False) -> Fp8Weight:
    """[experts, outputs, inputs] of any float, rounded with the finest scales there are."""
    experts, outputs, inputs = weight.shape
    if not blocked:
        values, scales = to_fp8(weight.flatten(0, 1), inputs)
        return Fp8Weight(values.view(weight.shape), scales.view(experts, outputs, 1))
    down, across = -(-outputs // BLOCK), -(-inputs // BLOCK)
    missing = (0, across * BLOCK - inputs, 0, down * BLOCK - outputs)
    padded = torch.nn.functional.pad(weight.float(), missing)
    shaped = padded.view(experts, down, BLOCK, across, BLOCK)
    scales = _scales(shaped.abs().amax((2, 4)))
    values = (shaped / scales[:, :, None, :, None]).to(E4M3).view(padded.shape)
    return Fp8Weight(values[:, :outputs, :inputs].contiguous(), scales, blocked=True)


def int4_weight(weight: Tensor, group: int = GROUP) -> Int4Weight:
    """[experts, outputs, inputs] rounded; of each group the largest number is kept best.

    It becomes -8, whatever its sign: the range that four bits have is then used to its end.
    """
    experts, outputs, inputs = weight.shape
    groups = -(-inputs // group)
    padded = torch.nn.functional.pad(weight.float(), (0, groups * group - inputs))
    grouped = padded.view(experts, outputs, groups, group)
    places = grouped.abs().argmax(-1, keepdim=True)
    scales = (grouped.gather(-1, places) / -MIDDLE).to(torch.bfloat16)
    scales = torch.where(scales == 0, 1.0, scales)
    numbers = (grouped / scales.float()).round().clamp(-MIDDLE, MIDDLE - 1) + MIDDLE
    turned = scales.squeeze(-1).transpose(1, 2).contiguous()
    return Int4Weight(packed_halves(numbers), turned, None, inputs)


def packed_halves(numbers: Tensor) -> Tensor:
    """[.., group] whole numbers 0 .. 15 to [.., group / 2] bytes; see Int4Weight."""
    low, high = numbers.to(torch.uint8).chunk(2, dim=-1)
    return (low | high << 4).contiguous()


def _scales(largest: Tensor) -> Tensor:
    """So that the largest number just fits, and never so small that dividing overflows."""
    return (largest / E4M3_MAX).clamp(min=LEAST_SCALE)
