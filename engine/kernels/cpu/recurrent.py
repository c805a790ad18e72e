"""Layers that keep a state, by compiled kernels; the twin is engine/attention/recurrence.py.

All nets are called alike; what a net has not is null.
"""

from ctypes import Structure, byref, c_float, c_int64, c_void_p
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from engine.kernels.cpu.attention import Numbers
from engine.kernels.cpu.library import FORMATS, Function, Library
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import LayerStates, RecurrentInputs
from engine.kernels.short_convolution import ConvolutionWeights

Weights: TypeAlias = "DeltaWeights | MambaWeights | ConvolutionWeights"


class _Net(NamedTuple):
    """What is called for a net, and what only some nets have."""

    run: Function
    floats: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
    norm: Tensor | None = None
    norm_groups: int = 1
    eps: float = 0.0


class _Plan(Structure):
    _fields_ = (
        ("spans", c_void_p),
        ("tables", c_void_p),
        ("num_spans", c_int64),
        ("threads", c_int64),
    )


class _Call(Structure):
    _fields_ = (
        ("mixed", c_void_p),
        ("rates", c_void_p),
        ("output", c_void_p),
        ("memory", c_void_p),
        ("inputs", c_void_p),
        ("convolution", c_void_p),
        ("bias", c_void_p),
        ("decay", c_void_p),
        ("offset", c_void_p),
        ("skip", c_void_p),
        ("norm", c_void_p),
        ("mixed_stride", c_int64),
        ("rates_stride", c_int64),
        ("memory_stride", c_int64),
        ("inputs_stride", c_int64),
        ("place", c_int64),
        ("key_heads", c_int64),
        ("value_heads", c_int64),
        ("key_width", c_int64),
        ("value_width", c_int64),
        ("taps", c_int64),
        ("norm_groups", c_int64),
        ("format", c_int64),
        ("wide", c_int64),
        ("eps", c_float),
    )


class RecurrentNets:
    """The recurrent layers of one batch, over states in blocks of KV memory.

    `spans` has four numbers for each sequence: the position of its first token, the number of
    tokens, the row of the first one, and where in `tables` its state blocks begin. Tokens are
    computed one behind the other, so results do not depend on how a prompt is cut into chunks.
    """

    def __init__(self, library: Library, spans: Numbers, tables: Numbers) -> None:
        self._delta_net = library.function("pd_delta_net")
        self._mamba = library.function("pd_mamba")
        self._convolution = library.function("pd_short_convolution")
        self._plan = _Plan(threads=torch.get_num_threads(), num_spans=len(spans) // 4)
        self.renew(spans, tables)

    def renew(self, spans: Numbers, tables: Numbers) -> None:
        """Replace the sequences by as many others; recorded calls then use these."""
        assert len(spans) == 4 * self._plan.num_spans, "as many"
        self._kept = spans, tables
        self._plan.spans, self._plan.tables = spans.buffer_info()[0], tables.buffer_info()[0]

    def recurrence(
        self, states: LayerStates, weights: Weights, inputs: RecurrentInputs
    ) -> Tensor:
        """See Batch in engine/attention/batch.py."""
        mixed, rates = (one if one.stride(1) == 1 else one.contiguous() for one in inputs)
        shape, net = weights.shape, self._net(weights)
        assert mixed.shape[1] == shape.channels + shape.values, "and no other columns"
        assert mixed.dtype is rates.dtype, "computed in one dtype"
        wide = net.norm is not None and net.norm.dtype is torch.float32
        assert wide or net.norm is None or net.norm.dtype is mixed.dtype, "or float32"
        output = mixed.new_empty(len(mixed), shape.values)
        floats = [one for one in net.floats if one is not None]
        assert all(one.dtype is torch.float32 for one in floats), "as documented"
        tensors = (mixed, rates, output, *states[:2], weights.by_tap, *net.floats, net.norm)
        call = _Call(
            *(None if one is None else one.data_ptr() for one in tensors),
            *(one.stride(0) for one in (mixed, rates, *states[:2])),
            states.place,
            shape.key_heads,
            shape.value_heads,
            shape.key_width,
            shape.value_width,
            shape.taps,
            net.norm_groups,
            FORMATS[mixed.dtype],
            wide,
            net.eps,
        )
        net.run.call(byref(self._plan), byref(call))
        return output

    def _net(self, weights: Weights) -> _Net:
        if isinstance(weights, ConvolutionWeights):
            return _Net(self._convolution, (weights.bias, None, None, None))
        skip, norm_groups, run = None, 1, self._delta_net
        if isinstance(weights, MambaWeights):
            skip, norm_groups, run = weights.skip, weights.norm_groups, self._mamba
        floats = weights.bias, weights.decay, weights.offset, skip
        return _Net(run, floats, weights.norm, norm_groups, weights.eps)
