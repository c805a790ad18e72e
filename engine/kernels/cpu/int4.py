"""int4 weights: a quarter of the bytes of bfloat16 that a step reads."""

import ctypes
from ctypes import Structure, c_int64, c_void_p

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.cpu.library import FORMATS, Library
from engine.kernels.rows import Rows, whole_rows
from engine.kernels.weights import FOUR_BITS, MIDDLE, Int4Weight

OUTPUTS_OF_A_BLOCK, OUTPUTS_OF_A_VECTOR = 64, 16
GROUPS = (32, 64, 128)
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
    )


class Int4Linear:
    """y = x W^T + b, for an Int4Weight of one expert, and rows of `dtype`, float32 or half.

    Rows are not rounded: a product is as exact as one of unquantized weights.
    """

    def __init__(
        self, library: Library, weight: Int4Weight, bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        assert weight.group in GROUPS, "what the kernel has room for"
        _, self._outputs, self._inputs = weight.shape
        self.packed, depth = _pack(weight), weight.packed.shape[2] * weight.group
        self._dtype = dtype
        padded = None if bias is None else _by_block(bias.float()[None])
        shifts = None if weight.zeros is None else _by_block(MIDDLE - weight.zeros[0].char())
        scales, order = _by_block(weight.scales[0].float()), _order(weight, depth)
        self._kept = scales, shifts, order, padded
        self._multiply = library.function("pd_multiply_int4")
        self._weight = _Weight(
            self.packed.data_ptr(),
            *(None if one is None else one.data_ptr() for one in self._kept),
            self._outputs,
            self._inputs,
            depth,
            weight.group,
            FORMATS[dtype],
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


def _pack(weight: Int4Weight) -> Tensor:
    """The kernel's layout (native/int4.hpp), [blocks, depth / 2, 16, 2, 2] bytes."""
    size = OUTPUTS_OF_A_BLOCK
    at_once = max(1, PACKED_AT_ONCE // (size * weight.inputs)) * size
    return torch.cat([_pack_some(part) for part in weight.packed[0].split(at_once)])


def _pack_some(packed: Tensor) -> Tensor:
    """[outputs, groups, group / 2] of an Int4Weight to whole blocks."""
    numbers = torch.cat((packed & FOUR_BITS, packed >> 4), dim=-1).flatten(1)
    missing = -len(numbers) % OUTPUTS_OF_A_BLOCK
    numbers = F.pad(numbers, (0, 0, 0, missing), value=MIDDLE)
    vectors = numbers.view(-1, 2, 2, OUTPUTS_OF_A_VECTOR, numbers.shape[1] // 2, 2)
    below, above = vectors.unbind(2)  # two vectors share a byte, four a word
    return (below | above << 4).permute(0, 3, 2, 4, 1).contiguous()


def _by_block(each: Tensor) -> Tensor:
    """[groups, outputs] to [blocks, groups, 64], padded with zeros."""
    size = OUTPUTS_OF_A_BLOCK
    padded = F.pad(each, (0, -each.shape[1] % size))
    return padded.view(len(each), -1, size).transpose(0, 1).contiguous()


def _order(weight: Int4Weight, depth: int) -> Tensor | None:
    """The input at each place, [depth] int32; -1: none."""
    if weight.order is None:
        return None
    return F.pad(weight.order[0].int(), (0, depth - weight.places), value=-1)
