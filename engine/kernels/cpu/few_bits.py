"""Weights of 4 and 8 bits: a quarter and half of the bytes of bfloat16 that a step reads."""

import ctypes
from collections.abc import Callable
from ctypes import Structure, c_int64, c_void_p
from typing import NamedTuple, TypeGuard

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.cpu.library import FORMATS, Library
from engine.kernels.rows import Rows, whole_rows
from engine.kernels.weights import BLOCK, FOUR_BITS, MIDDLE, Fp8Weight, Int4Weight, Weight

OUTPUTS_OF_A_BLOCK, OUTPUTS_OF_A_VECTOR = 64, 16
GROUPS = (32, 64, 128)
NOT_A_NUMBER = 0x7F  # without its sign
PACKED_AT_ONCE = 1 << 25  # numbers: packing takes some times their memory


class _Weight(Structure):
    _fields_ = (
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("shifts", c_void_p),
        ("order", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("depth", c_int64),
        ("group", c_int64),
        ("format", c_int64),
        ("bits", c_int64),
    )


class _Parts(NamedTuple):
    """A weight as the kernel reads it. Scales and shifts are [groups, outputs]."""

    packed: Tensor  # see native/codes.hpp
    bits: int
    group: int
    scales: Tensor
    shifts: Tensor | None
    order: Tensor | None


class FewBitsLinear:
    """y = x W^T + b, for a weight of one expert, and rows of `dtype`, float32 or half.

    Rows are not rounded: a product is as exact as one of unquantized weights.
    """

    def __init__(
        self,
        library: Library,
        weight: Int4Weight | Fp8Weight,
        bias: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        parts = _four_bits(weight) if isinstance(weight, Int4Weight) else _eight_bits(weight)
        assert parts.group in GROUPS, "what the kernel has room for"
        _, self._outputs, self._inputs = weight.shape
        self.packed, self.bits, self._dtype = parts.packed, parts.bits, dtype
        shifts = None if parts.shifts is None else _by_block(parts.shifts)
        padded = None if bias is None else _by_block(bias.float()[None])
        self._kept = _by_block(parts.scales.float()), shifts, parts.order, padded
        self._multiply = library.function("pd_multiply_few_bits")
        self._weight = _Weight(
            self.packed.data_ptr(),
            *(None if one is None else one.data_ptr() for one in self._kept),
            self._outputs,
            self._inputs,
            len(parts.scales) * parts.group,
            parts.group,
            FORMATS[dtype],
            parts.bits,
        )
        self._at = ctypes.addressof(self._weight)

    def __call__(self, inputs: Rows) -> Tensor:
        """[rows, inputs] to [rows, outputs]."""
        inputs = whole_rows(inputs).contiguous()
        assert inputs.dtype is self._dtype, "as all of a model's"
        rows = inputs.shape[0]
        outputs = inputs.new_empty(rows, self._outputs)
        threads = torch.get_num_threads()
        self._multiply.call(self._at, inputs.data_ptr(), outputs.data_ptr(), rows, threads)
        return outputs


def stays_packed(weight: Weight) -> TypeGuard[Int4Weight | Fp8Weight]:
    """Whether the kernel multiplies this weight: it has no numbers that are none (NaN)."""
    if isinstance(weight, Fp8Weight):
        return bool((weight.values.view(torch.uint8) & NOT_A_NUMBER != NOT_A_NUMBER).all())
    return isinstance(weight, Int4Weight)


def _four_bits(weight: Int4Weight) -> _Parts:
    packed = _by_parts(weight.packed[0], weight.inputs, _pack_four_bits)
    shifts = None if weight.zeros is None else MIDDLE - weight.zeros[0].char()
    order = None
    if weight.order is not None:  # the input at each place; -1: none
        depth = weight.packed.shape[2] * weight.group
        order = F.pad(weight.order[0].int(), (0, depth - weight.places), value=-1)
    return _Parts(packed, 4, weight.group, weight.scales[0], shifts, order)


def _pack_four_bits(packed: Tensor) -> Tensor:
    """[outputs, groups, group / 2] of an Int4Weight to whole blocks."""
    numbers = torch.cat((packed & FOUR_BITS, packed >> 4), dim=-1).flatten(1)
    numbers = F.pad(numbers, (0, 0, 0, -len(numbers) % OUTPUTS_OF_A_BLOCK), value=MIDDLE)
    vectors = numbers.view(-1, 2, 2, OUTPUTS_OF_A_VECTOR, numbers.shape[1] // 2, 2)
    below, above = vectors.unbind(2)  # two vectors share a byte, four a word
    return (below | above << 4).permute(0, 3, 2, 4, 1).contiguous()


def _eight_bits(weight: Fp8Weight) -> _Parts:
    _, _, inputs = weight.shape
    packed = _by_parts(weight.values[0].view(torch.uint8), inputs, _pack_eight_bits)
    groups = -(-inputs // BLOCK)
    return _Parts(packed, 8, BLOCK, weight.scales[0].expand(groups, -1), None, None)


def _pack_eight_bits(numbers: Tensor) -> Tensor:
    """[outputs, inputs] bytes of e4m3 to whole blocks and groups."""
    outputs, inputs = numbers.shape
    numbers = F.pad(numbers, (0, -inputs % BLOCK, 0, -outputs % OUTPUTS_OF_A_BLOCK))
    first, rest = (numbers & 0x40) >> 2, (numbers & 0x38) << 2  # of the exponent
    codes = rest | first | (numbers & 0x80) >> 4 | numbers & 0x07
    vectors = codes.view(-1, 2, 2, OUTPUTS_OF_A_VECTOR, codes.shape[1] // 2, 2)
    return vectors.permute(0, 4, 1, 3, 5, 2).contiguous()  # two vectors share a word


def _by_parts(numbers: Tensor, inputs: int, pack: Callable[[Tensor], Tensor]) -> Tensor:
    """Pack [outputs, ..] some blocks at a time."""
    at_once = max(1, PACKED_AT_ONCE // (OUTPUTS_OF_A_BLOCK * inputs)) * OUTPUTS_OF_A_BLOCK
    return torch.cat([pack(part) for part in numbers.split(at_once)])


def _by_block(each: Tensor) -> Tensor:
    """[groups, outputs] to [blocks, groups, 64], padded with zeros."""
    size = OUTPUTS_OF_A_BLOCK
    padded = F.pad(each, (0, -each.shape[1] % size))
    return padded.view(len(each), -1, size).transpose(0, 1).contiguous()
