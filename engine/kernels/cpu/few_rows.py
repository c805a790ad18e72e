"""Products of a few rows with a bfloat16 weight that oneDNN packed; its twin is oneDNN."""

import ctypes
from ctypes import Structure, c_int64, c_void_p

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.cpu.library import Library

OUTPUTS_OF_A_BLOCK = 64


class _Weight(Structure):
    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("padded_inputs", c_int64),
    )


class FewRows:
    """Products of a few rows with a weight that oneDNN packed: `bytes`, from `address` on."""

    def __init__(
        self, library: Library, packed: Tensor, shape: tuple[int, int], bias: Tensor | None
    ) -> None:
        outputs, inputs = shape
        blocks = -(-outputs // OUTPUTS_OF_A_BLOCK)
        self._multiply = library.function("pd_multiply")
        self._kept, self._outputs = (packed, bias), outputs
        self.address: int = torch.ops.mkldnn.data_ptr(packed)
        self.bytes = _numbers(packed) * packed.itemsize
        self._weight = _Weight(
            self.address,
            None if bias is None else bias.data_ptr(),
            outputs,
            inputs,
            _numbers(packed) // (blocks * OUTPUTS_OF_A_BLOCK),
        )
        self._at = ctypes.addressof(self._weight)

    def __call__(self, inputs: Tensor) -> Tensor:
        """[rows, inputs] to [rows, outputs]."""
        inputs = inputs.contiguous()
        rows = inputs.shape[0]
        outputs = inputs.new_empty(rows, self._outputs)
        threads = torch.get_num_threads()
        self._multiply.call(self._at, inputs.data_ptr(), outputs.data_ptr(), rows, threads)
        return outputs


def packed_as_we_read(packed: Tensor, weight: Tensor) -> bool:
    """Whether the layout is [outputs / 64, inputs / 2, 64, 2], padded with zeros; looks at two
    blocks.
    """
    outputs, inputs = weight.shape
    size, blocks = OUTPUTS_OF_A_BLOCK, -(-outputs // OUTPUTS_OF_A_BLOCK)
    deep, rest = divmod(_numbers(packed), blocks * size)
    if rest or deep < inputs or deep % 2:
        return False
    memory = (ctypes.c_char * (_numbers(packed) * weight.itemsize)).from_address(
        torch.ops.mkldnn.data_ptr(packed)
    )
    there = torch.frombuffer(memory, dtype=weight.dtype).view(blocks, deep // 2, size, 2)
    for block in {0, blocks - 1}:
        ours = weight[block * size : (block + 1) * size]
        ours = F.pad(ours, (0, deep - inputs, 0, size - len(ours)))
        if not torch.equal(there[block], ours.view(size, deep // 2, 2).transpose(0, 1)):
            return False
    return True


def _numbers(packed: Tensor) -> int:
    count: int = torch.ops.mkldnn._nbytes(packed) // packed.itemsize
    return count
