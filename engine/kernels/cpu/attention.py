"""Attention over paged KV by the compiled kernel; its twin is engine/attention/paged.py."""

from array import array
from ctypes import Structure, byref, c_float, c_int64, c_void_p
from typing import TypeAlias

import torch
from torch import Tensor

from engine.kernels.cpu.library import FORMATS, Library
from engine.kernels.rows import E4M3
from engine.kernels.style import AttentionStyle

Numbers: TypeAlias = "array[int]"  # of type "q"


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
        ("rounded", c_int64),
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

    `spans` has four numbers for each sequence: the position of its first query, the number of
    queries, the row of the first one, and where in `tables` its block ids begin. A value is the
    first `value_width` numbers of its row; None: all. Memory has the type of the queries, or is
    in fp8. None of this changes while it is in use.
    """

    def __init__(
        self,
        library: Library,
        memory: Tensor,
        value_width: int | None,
        spans: Numbers,
        tables: Numbers,
    ) -> None:
        _, _, parts, kv_heads, block_size, width = memory.shape
        self._attend = library.function("pd_attend")
        self._kept = memory, spans, tables
        self._layer_stride = memory.stride(1)
        self._plan = _Plan(
            spans.buffer_info()[0],
            tables.buffer_info()[0],
            memory.data_ptr(),
            len(spans) // 4,
            0,
            kv_heads,
            width,
            value_width or width,
            (parts - 1) * memory.stride(2),
            block_size,
            memory.stride(0),
            0,
            memory.dtype is E4M3,
            torch.get_num_threads(),
        )

    def renew(self, spans: Numbers, tables: Numbers) -> None:
        """Replace the sequences by as many others; recorded calls then use these."""
        assert len(spans) == len(self._kept[1]), "as many"
        self._kept = self._kept[0], spans, tables
        self._plan.spans, self._plan.tables = spans.buffer_info()[0], tables.buffer_info()[0]

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """Attend to the layer's KV: [tokens, heads, width] to [tokens, heads * value_width]."""
        tokens, heads, width = queries.shape
        assert self._kept[0].dtype in (queries.dtype, E4M3), (
            "kept as it was computed, or in fp8"
        )
        if queries.stride()[1:] != (width, 1):
            queries = queries.contiguous()
        output = queries.new_empty(tokens, heads * self._plan.value_width)
        sinks = None if style.sinks is None else style.sinks.to(torch.float32).contiguous()
        self._plan.heads, self._plan.format = heads, FORMATS[queries.dtype]
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
        self._attend.call(byref(self._plan), byref(call))
        return output
