"""The compiled CPU kernels, as Python calls them: pointers and sizes of torch's tensors.

Every one of them has a twin in plain torch, which is what they are tested against and what
runs without them. Threads are those of torch: both use the same OpenMP runtime.
"""

import ctypes
import logging
from array import array
from ctypes import Structure, byref, c_float, c_int64, c_void_p
from pathlib import Path
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.style import AttentionStyle
from engine.errors import NoKernels
from engine.kernels.build import library

log = logging.getLogger(__name__)
Numbers: TypeAlias = "array[int]"  # of type "q"
OUTPUTS_OF_A_BLOCK = 64
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class _Plan(Structure):
    _fields_ = (
        ("spans", c_void_p),
        ("tables", c_void_p),
        ("memory", c_void_p),
        ("num_spans", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("width", c_int64),
        ("value_width", c_int64),
        ("value_offset", c_int64),
        ("block_size", c_int64),
        ("block_stride", c_int64),
        ("format", c_int64),
        ("threads", c_int64),
    )


class _Call(Structure):
    _fields_ = (
        ("queries", c_void_p),
        ("output", c_void_p),
        ("sinks", c_void_p),
        ("query_stride", c_int64),
        ("layer_offset", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
    )


class PagedAttention:
    """Attention of one batch over paged KV [block, layer, part, kv_head, token, width].

    `spans` [sequences, 4] int64 say of each sequence where its queries start and how many
    there are, which row of the queries is the first, and where in `tables`, int64, its block
    ids begin. Of a value the first `value_width` numbers count; None: all. All tensors are
    on the CPU and stay as they are while this is used.
    """

    def __init__(
        self,
        kernels: "Kernels",
        memory: Tensor,
        value_width: int | None,
        spans: Tensor,
        tables: Tensor,
    ) -> None:
        _, _, parts, kv_heads, block_size, width = memory.shape
        self._attend = kernels.library.pd_attend
        self._kept = memory, spans, tables
        self._layer_stride = memory.stride(1)
        self._plan = _Plan(
            spans.data_ptr(),
            tables.data_ptr(),
            memory.data_ptr(),
            len(spans),
            0,
            kv_heads,
            width,
            value_width or width,
            (parts - 1) * memory.stride(2),
            block_size,
            memory.stride(0),
            FORMATS[memory.dtype],
            torch.get_num_threads(),
        )

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """[tokens, heads, width] against the layer's KV; [tokens, heads * value_width]."""
        tokens, heads, width = queries.shape
        if queries.stride()[1:] != (width, 1):
            queries = queries.contiguous()
        output = queries.new_empty(tokens, heads * self._plan.value_width)
        sinks = None if style.sinks is None else style.sinks.to(torch.float32).contiguous()
        self._plan.heads = heads
        call = _Call(
            queries.data_ptr(),
            output.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            queries.stride(0),
            layer * self._layer_stride,
            style.window or 0,
            style.scale,
            style.softcap or 0.0,
        )
        self._attend(byref(self._plan), byref(call))
        return output


class _Weight(Structure):
    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("padded_inputs", c_int64),
    )


class FewRows:
    """Products of a few rows with a bfloat16 weight that oneDNN packed."""

    def __init__(
        self, kernels: "Kernels", packed: Tensor, shape: tuple[int, int], bias: Tensor | None
    ) -> None:
        outputs, inputs = shape
        blocks = -(-outputs // OUTPUTS_OF_A_BLOCK)
        self._multiply = kernels.library.pd_multiply
        self._kept, self._outputs = (packed, bias), outputs
        self._weight = _Weight(
            torch.ops.mkldnn.data_ptr(packed),
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
        self._multiply(self._at, inputs.data_ptr(), outputs.data_ptr(), rows, threads)
        return outputs


class Kernels:
    """The library; opened once and handed to what calculates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.pd_attend.argtypes = (c_void_p, c_void_p)
        self.library.pd_attend.restype = None
        self.library.pd_multiply.argtypes = (c_void_p, c_void_p, c_void_p, c_int64, c_int64)
        self.library.pd_multiply.restype = None

    def attention(
        self, memory: Tensor, value_width: int | None, spans: Numbers, tables: Numbers
    ) -> PagedAttention:
        """See PagedAttention."""
        rows = torch.frombuffer(spans, dtype=torch.int64).view(-1, 4)
        ids = torch.frombuffer(tables, dtype=torch.int64)
        return PagedAttention(self, memory, value_width, rows, ids)

    def few_rows(self, packed: Tensor, weight: Tensor, bias: Tensor | None) -> FewRows | None:
        """For `weight` [outputs, inputs] as oneDNN `packed` it; None if it did it otherwise."""
        outputs, inputs = weight.shape
        if not self.library.pd_pairs() or inputs % 2 or not _packed_as_we_read(packed, weight):
            return None
        return FewRows(self, packed, (outputs, inputs), bias)


def _packed_as_we_read(packed: Tensor, weight: Tensor) -> bool:
    """[outputs / 64, inputs / 2, 64, 2], padded with zeros; seen in two blocks."""
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


def open_kernels(wanted: str) -> Kernels | None:
    """None where plain torch is `wanted`, or where there are none and `auto` leaves it open.

    Raises NoKernels where they are wanted by name: `native`.
    """
    if wanted == "torch":
        log.info("kernels: plain torch, as demanded")
        return None
    try:
        kernels = Kernels(library())
    except NoKernels as error:
        if wanted == "native":
            raise
        log.warning("kernels: plain torch, which is slower: %s", error)
        return None
    log.info("kernels: %s", kernels.path)
    return kernels
