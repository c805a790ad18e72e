"""int8 weights: half the memory of bfloat16, and half the bytes that a step reads.

Each output has a scale, and each row of inputs gets one when it is multiplied. Sums are exact,
so rounding to 8 bits is the only error.
"""

import ctypes
import statistics
from ctypes import Structure, c_int64, c_void_p
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.kernels.cpu.library import Library
from engine.kernels.rows import Rows, whole_rows

OUTPUTS_OF_A_BLOCK, INPUTS_OF_A_WORD = 64, 4
LARGEST, MIDDLE = 127, 128
PROBE_ROWS, PROBE_SEED = 4, 0


class _Weight(Structure):
    _fields_ = (
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("middle", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
    )


class Int8Linear:
    """y = x W^T + b, for a bfloat16 W [outputs, inputs] that is quantized to int8 here."""

    def __init__(self, library: Library, weight: Tensor, bias: Tensor | None) -> None:
        whole, scales = quantize(weight)
        self.packed, middle = _pack(whole)
        padded = F.pad(scales, (0, len(middle) - len(scales)))
        self._kept, self._outputs = (padded, middle, bias), len(weight)
        self._multiply = library.function("pd_multiply_int8")
        self._weight = _Weight(
            self.packed.data_ptr(),
            padded.data_ptr(),
            middle.data_ptr(),
            None if bias is None else bias.data_ptr(),
            *weight.shape,
        )
        self._at = ctypes.addressof(self._weight)

    def __call__(self, inputs: Rows) -> Tensor:
        """[rows, inputs] to [rows, outputs], bfloat16."""
        assert inputs.dtype is torch.bfloat16, "weights of 8 bits go with bfloat16"
        inputs = whole_rows(inputs).contiguous()
        rows = inputs.shape[0]
        outputs = inputs.new_empty(rows, self._outputs)
        threads = torch.get_num_threads()
        self._multiply.call(self._at, inputs.data_ptr(), outputs.data_ptr(), rows, threads)
        return outputs


@dataclass(slots=True)
class Quantizer:
    """Makes int8 weights, and records the error that this adds to each product."""

    library: Library
    errors: list[float] = field(default_factory=list)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Int8Linear:
        """Quantize `weight`, which is not kept."""
        made = Int8Linear(self.library, weight, bias)
        generator = torch.Generator().manual_seed(PROBE_SEED)
        probe = torch.randn(PROBE_ROWS, weight.shape[1], generator=generator).bfloat16()
        exact = F.linear(probe, weight, bias).float()
        lost = (made(probe).float() - exact).norm() / exact.norm()
        self.errors.append(lost.item())
        return made

    def summary(self) -> str:
        """One line for the log about the errors."""
        if not self.errors:
            return "no product has weights of 8 bits"
        mean, most = statistics.mean(self.errors), max(self.errors)
        return (
            f"{len(self.errors)} products have weights of 8 bits; on a random probe they "
            f"differ from bfloat16 by {mean:.2%} in the mean and {most:.2%} at most, in norm"
        )


def quantize(values: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, size] to int8, -127 .. 127, and a float32 scale for each row."""
    scales = values.float().abs().amax(1) / LARGEST
    back = torch.where(scales > 0, 1 / scales, 0)
    return (values.float() * back[:, None]).round().to(torch.int8), scales


def _pack(whole: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's layout [outputs / 64, inputs / 4, 64, 4], and MIDDLE's part of each sum."""
    outputs, inputs = whole.shape
    blocks, words = -(-outputs // OUTPUTS_OF_A_BLOCK), -(-inputs // INPUTS_OF_A_WORD)
    missing = words * INPUTS_OF_A_WORD - inputs, blocks * OUTPUTS_OF_A_BLOCK - outputs
    whole = F.pad(whole, (0, missing[0], 0, missing[1]))
    shaped = whole.view(blocks, OUTPUTS_OF_A_BLOCK, words, INPUTS_OF_A_WORD)
    middle = whole.sum(1, dtype=torch.int32) * MIDDLE
    return shaped.transpose(1, 2).contiguous(), middle
