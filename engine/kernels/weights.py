"""Weight formats: unquantized, fp8, and int4.

Each holds the weights of some experts; a dense layer has one expert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from engine.kernels.rows import Rows, already_quantized, quantize_rows_twin, to_fp8, whole_rows

BLOCK = 128  # inputs and outputs that share a scale in DeepSeek's checkpoints
GROUP = 128  # inputs that share a scale in int4 weights
FOUR_BITS, MIDDLE = 15, 8


@dataclass(frozen=True, slots=True, eq=False)
class PlainWeight:
    """An unquantized weight, as it is in the checkpoint."""

    values: Tensor  # [experts, outputs, inputs]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, outputs, inputs."""
        experts, outputs, inputs = self.values.shape
        return experts, outputs, inputs

    def whole(self, expert: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One expert's weight, [outputs, inputs], dequantized if need be."""
        return self.values[expert].to(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight:
    """Numbers of 8 bits (e4m3; Micikevicius et al. 2022) times scales.

    A scale belongs to an output, or to BLOCK inputs of an output. A checkpoint with one scale
    for BLOCK by BLOCK numbers (DeepSeek-AI 2024, "DeepSeek-V3", section 3.3.2) has it repeated
    for each output here, so that outputs can be concatenated and reordered. Inputs are
    quantized alike before a product: with a scale for each row, or for BLOCK numbers of it.
    """

    values: Tensor  # [experts, outputs, inputs] float8_e4m3fn
    scales: Tensor  # [experts, 1 or inputs / BLOCK, outputs] float32

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, outputs, inputs."""
        experts, outputs, inputs = self.values.shape
        return experts, outputs, inputs

    @property
    def blocked(self) -> bool:
        """Whether a scale belongs to BLOCK inputs of an output, not to all of them."""
        return self.scales.shape[1] > 1

    @property
    def row_group(self) -> int | None:
        """How many numbers of an input row share a scale; None: all of them."""
        return BLOCK if self.blocked else None

    def whole(self, expert: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One expert's weight, [outputs, inputs], dequantized if need be."""
        values, scales = self.values[expert].to(dtype), self.scales[expert].T.to(dtype)
        if self.blocked:
            scales = scales.repeat_interleave(BLOCK, 1)[:, : values.shape[1]]
        return values * scales


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight:
    """Integers 0 .. 15, minus a zero point, times a scale, both for each group of inputs.

    Byte j of a group has number j in its low half, and number j + group / 2 in its high half,
    so that a kernel that unpacks both halves gets two contiguous runs of inputs. Padding in the
    last group is ignored. `zeros` None: MIDDLE everywhere.

    A group has consecutive inputs, or those that `order` names: place i then has input order[i]
    (GPTQ's act-order; Frantar et al. 2022, "GPTQ", sorts inputs by importance). There may be
    more places than inputs: those with -1 have none, and are ignored.
    """

    packed: Tensor  # [experts, outputs, groups, group / 2] uint8
    scales: Tensor  # [experts, groups, outputs], any float
    zeros: Tensor | None  # [experts, groups, outputs] uint8
    inputs: int
    order: Tensor | None = None  # [experts, places] int32

    @property
    def group(self) -> int:
        """How many inputs share a scale."""
        return 2 * self.packed.shape[3]

    @property
    def places(self) -> int:
        """The number of places: inputs, and places without one."""
        return self.inputs if self.order is None else self.order.shape[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Experts, outputs, inputs."""
        return self.packed.shape[0], self.packed.shape[1], self.inputs

    def whole(self, expert: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One expert's weight, [outputs, inputs], dequantized if need be."""
        packed = self.packed[expert]
        numbers = torch.cat((packed & FOUR_BITS, packed >> 4), dim=-1).to(dtype)
        zeros = MIDDLE if self.zeros is None else self.zeros[expert].T.unsqueeze(-1).to(dtype)
        scaled = (numbers - zeros) * self.scales[expert].T.unsqueeze(-1).to(dtype)
        placed = scaled.flatten(1)[:, : self.places]
        if self.order is None:
            return placed
        order = self.order[expert].long()
        whole = placed.new_empty(len(placed), self.inputs)
        return whole.index_copy_(1, order[order >= 0], placed[:, order >= 0])


Weight: TypeAlias = PlainWeight | Fp8Weight | Int4Weight


OUTPUTS = {"values": 1, "packed": 1, "scales": 2, "zeros": 2}
"""The dimension of the outputs in each part."""


def stack_experts(weights: Sequence[Weight]) -> Weight:
    """One weight with the experts of several, all of one format."""
    return _joined(weights, dict.fromkeys((*OUTPUTS, "order"), 0))


def concat_outputs(weights: Sequence[Weight]) -> Weight:
    """Several weights of one format as one, with their outputs concatenated.

    Their inputs must be in the same order: see `same_input_order`.
    """
    assert all(same_input_order(weights[0], one) for one in weights), (
        "one order is of all outputs"
    )
    return _joined(weights, OUTPUTS)


def same_input_order(one: Weight, other: Weight) -> bool:
    """Whether two weights of one format have their inputs in the same order."""
    first, second = (getattr(each, "order", None) for each in (one, other))
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)


def reordered(weight: Weight, order: Tensor) -> Weight:
    """The weight with its outputs, and their scales, in another `order` [outputs]."""
    moved = dict[str, Any]()
    for name, dim in OUTPUTS.items():
        if isinstance(part := getattr(weight, name, None), Tensor):
            moved[name] = _plain(part).index_select(dim, order).view(part.dtype)
    return replace(weight, **moved)


def multiplied(weight: Weight, factor: float | Tensor) -> Weight:
    """A quantized weight times a number, or times one for each output: [outputs] float32."""
    assert not isinstance(weight, PlainWeight), "has no scales"
    if isinstance(factor, Tensor):
        factor = factor.to(weight.scales.device)
    return replace(weight, scales=weight.scales.float() * factor)


def _joined(weights: Sequence[Weight], dims: Mapping[str, int]) -> Weight:
    if len(weights) == 1:
        return weights[0]
    parts = dict[str, Any]()
    for name, dim in dims.items():
        if isinstance(getattr(weights[0], name, None), Tensor):
            parts[name] = joined([getattr(one, name) for one in weights], dim)
    return replace(weights[0], **parts)


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate along `dim`, whatever the dtype; of several, in the widest."""
    whole = torch.cat([_plain(one) for one in parts], dim)
    return whole.view(parts[0].dtype) if parts[0].dtype.itemsize == 1 else whole


def _plain(part: Tensor) -> Tensor:
    """fp8 numbers viewed as bytes, because not all devices can copy fp8."""
    small = part.dtype.is_floating_point and part.dtype.itemsize == 1
    return part.view(torch.uint8) if small else part


def wide(rows: Rows) -> torch.dtype:
    """The dtype in which products are summed."""
    return torch.promote_types(rows.dtype, torch.float32)


def quantized_inputs(rows: Rows, weight: Weight) -> Tensor:
    """Rows as the product with `weight` reads them: quantized for fp8; float32 or wider."""
    if not isinstance(weight, Fp8Weight):
        return whole_rows(rows).to(wide(rows))
    group = weight.row_group
    ours = already_quantized(rows, group)
    return (quantize_rows_twin(whole_rows(rows), group) if ours is None else ours).whole()


def fp8_weight(weight: Tensor, *, blocked: bool = False) -> Fp8Weight:
    """Quantize [experts, outputs, inputs], with a scale for each output, or finer ones."""
    experts, outputs, inputs = weight.shape
    values, scales = to_fp8(weight.flatten(0, 1), BLOCK if blocked else inputs)
    turned = scales.view(experts, outputs, -1).transpose(1, 2).contiguous()
    return Fp8Weight(values.view(weight.shape), turned)


def int4_weight(weight: Tensor, group: int = GROUP) -> Int4Weight:
    """Quantize [experts, outputs, inputs]; each group's largest number is the most exact.

    It becomes -8, whatever its sign, so that the whole range of four bits is used.
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
    """[.., group] integers 0 .. 15 to [.., group / 2] bytes; see Int4Weight."""
    low, high = numbers.to(torch.uint8).chunk(2, dim=-1)
    return (low | high << 4).contiguous()
