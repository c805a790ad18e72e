"""Attention over paged KV by the compiled kernel; its twin is engine/attention/paged.py."""

from ctypes import CDLL, Structure, byref, c_float, c_int64, c_void_p

import torch
from torch import Tensor

from engine.kernels.style import AttentionStyle

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
        library: CDLL,
        memory: Tensor,
        value_width: int | None,
        spans: Tensor,
        tables: Tensor,
    ) -> None:
        _, _, parts, kv_heads, block_size, width = memory.shape
        self._attend = library.pd_attend
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
        assert queries.dtype is self._kept[0].dtype, "kept as it was computed"
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
