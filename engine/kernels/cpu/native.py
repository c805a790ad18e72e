"""The compiled CPU kernels, as Python calls them: pointers and sizes of torch's tensors.

Each has a twin in plain torch, which it is tested against, and which runs without it. They run
on torch's threads: both use the same OpenMP runtime.
"""

import logging
from collections.abc import Callable, Collection
from ctypes import c_int64
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import KernelsUnavailable
from engine.kernels.contract import Linear
from engine.kernels.cpu.attention import Numbers, PagedAttention
from engine.kernels.cpu.build import library
from engine.kernels.cpu.few_bits import FewBitsLinear
from engine.kernels.cpu.few_rows import FewRows, packed_as_we_read
from engine.kernels.cpu.int8 import Quantizer
from engine.kernels.cpu.large_pages import PAGE, gather
from engine.kernels.cpu.library import FORMATS, Library, RecordedCalls
from engine.kernels.cpu.recording import Arena, record
from engine.kernels.cpu.recurrent import RecurrentNets
from engine.kernels.fusion import FewRowProducts
from engine.kernels.rows import E4M3
from engine.kernels.weights import Fp8Weight, Int4Weight

log = logging.getLogger(__name__)
GATES = {"silu": 0, "gelu_pytorch_tanh": 1}
SIGMOID, RELU, SUM = 2, 3, 4


class CpuKernels:
    """See Kernels in engine/kernels/contract.py; raises KernelsUnavailable.

    With a `quantizer`, products have int8 weights.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.library = path, Library(path)
        self.quantizer: Quantizer | None = None
        self._arena, self._weights = Arena(), list[tuple[int, int]]()
        function = self.library.function
        self._norm, self._add_norm = function("pd_norm"), function("pd_add_norm")
        self._gate, self._write = function("pd_gate"), function("pd_write")
        self._turn_and_write = function("pd_turn_and_write")
        self._gumbel_argmax = function("pd_noisiest")

    def record(self, work: Callable[[], Tensor]) -> tuple[Tensor, RecordedCalls | str]:
        """See `record` in engine/kernels/cpu/recording.py."""
        return record(self.library, self._arena, work)

    def quantize(self) -> None:
        """Quantize weights to int8 from now on; raises KernelsUnavailable if the CPU cannot."""
        if not self.library.multiplies_int8_quads:
            raise KernelsUnavailable(
                "weights of 8 bits want a CPU with AVX512-VNNI and AVX512-BF16"
            )
        self.quantizer = Quantizer(self.library)

    @property
    def gates(self) -> Collection[str]:
        """See Kernels in engine/kernels/contract.py, here and below."""
        return GATES

    @property
    def few_row_products(self) -> FewRowProducts | None:
        """None: on a CPU a call costs almost nothing."""
        return None

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear | None:
        """A product with int8 weights, if there is a quantizer."""
        if self.quantizer is None:
            return None
        made = self.quantizer.linear(weight, bias)
        self._weights.append((made.packed.data_ptr(), made.packed.nbytes))
        return made

    @property
    def multiplies_few_bits(self) -> bool:
        """Whether this CPU can multiply with weights of few bits faster than torch does."""
        return self.library.multiplies_bfloat16_pairs

    def few_bits(
        self, weight: Int4Weight | Fp8Weight, bias: Tensor | None, dtype: torch.dtype
    ) -> FewBitsLinear:
        """A product with a weight of 4 or 8 bits, for rows of `dtype`."""
        made = FewBitsLinear(self.library, weight, bias, dtype)
        self._weights.append((made.packed.data_ptr(), made.packed.nbytes))
        return made

    def attention(
        self, memory: Tensor, value_width: int | None, spans: Numbers, tables: Numbers
    ) -> PagedAttention:
        """See PagedAttention."""
        return PagedAttention(self.library, memory, value_width, spans, tables)

    def recurrent_nets(self, spans: Numbers, tables: Numbers) -> RecurrentNets:
        """See RecurrentNets."""
        return RecurrentNets(self.library, spans, tables)

    def move_to_large_pages(self) -> None:
        """Gather these kernels' weights in large pages, once all are loaded."""
        if self._weights:
            pages = gather(self._weights)
            log.info("weights: %d MiB lie in large pages", pages * PAGE >> 20)

    def few_rows(self, packed: Tensor, weight: Tensor, bias: Tensor | None) -> FewRows | None:
        """A product with a `weight` [outputs, inputs] as oneDNN `packed` it.

        None if oneDNN did not pack it in the layout that the kernel reads.
        """
        outputs, inputs = weight.shape
        if (
            not self.library.multiplies_bfloat16_pairs
            or inputs % 2
            or not packed_as_we_read(packed, weight)
        ):
            return None
        made = FewRows(self.library, packed, (outputs, inputs), bias)
        self._weights.append((made.address, made.bytes))
        return made

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Kernels."""
        tokens, *inner, size = inputs.shape
        if inputs.stride()[1:] != (size, 1)[-len(inner) - 1 :]:
            inputs = inputs.contiguous()
        outputs = inputs.new_empty(inputs.shape)
        self._norm.call(
            inputs.data_ptr(),
            weight.data_ptr(),
            outputs.data_ptr(),
            tokens,
            *(inner or (1,)),
            size,
            inputs.stride(0),
            FORMATS[inputs.dtype],
            weight.dtype is not inputs.dtype,
            torch.get_num_threads(),
            eps,
        )
        return outputs

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See Kernels. The sum is rounded to its dtype before it is normed."""
        assert inputs.dtype is residual.dtype, "as all of a model's"
        inputs, residual = inputs.contiguous(), residual.contiguous()
        rows, size = inputs.shape
        added, outputs = inputs.new_empty(rows, size), inputs.new_empty(rows, size)
        self._add_norm.call(
            inputs.data_ptr(),
            residual.data_ptr(),
            added.data_ptr(),
            weight.data_ptr(),
            outputs.data_ptr(),
            rows,
            size,
            inputs.stride(0),
            FORMATS[inputs.dtype],
            weight.dtype is not inputs.dtype,
            torch.get_num_threads(),
            eps,
            scale,
        )
        return outputs, added

    def gated(
        self, gate_up: Tensor, gate: str, clamp: tuple[float, float] | None = None
    ) -> Tensor:
        """[rows, 2 * size] to [rows, size]: activate(gate) * up, for the names in GATES."""
        assert clamp is None, "not one of GATES"
        gates, ups = gate_up.contiguous().chunk(2, 1)
        return self._gated(gates, ups, GATES[gate])

    def sigmoid_gated(self, rows: Tensor, gates: Tensor) -> Tensor:
        """See Kernels."""
        return self._gated(gates, rows, SIGMOID)

    def added(self, rows: Tensor, others: Tensor) -> Tensor:
        """See Kernels."""
        return self._gated(rows, others, SUM)

    def squared_relu(self, rows: Tensor) -> Tensor:
        """See Kernels: each number is its own gate."""
        return self._gated(rows, rows, RELU)

    def _gated(self, gates: Tensor, ups: Tensor, activation: int) -> Tensor:
        assert gates.dtype is ups.dtype, "computed in one dtype"
        assert gates.stride(1) == ups.stride(1) == 1, "a row's lie together"
        outputs = ups.new_empty(ups.shape)
        addresses = (one.data_ptr() for one in (gates, ups, outputs))
        strides = gates.stride(0), ups.stride(0)
        how = activation, FORMATS[ups.dtype], torch.get_num_threads()
        self._gate.call(*addresses, *ups.shape, *strides, *how)
        return outputs

    def turn_and_write(
        self,
        parts: tuple[Tensor, Tensor, Tensor],
        angles: tuple[Tensor, Tensor] | None,
        memory: Tensor,
        slots: Tensor,
    ) -> None:
        """Rotate queries and keys, and write keys and values; all [tokens, heads, width].

        Rotates in place, by cosines and sines [tokens, 1, width], if there are `angles`; writes
        keys and values to the rows `slots` [2, tokens * kv_heads] of `memory` [.., width].
        """
        queries, keys, values = parts
        tokens, _, width = queries.shape
        assert all(one.stride()[1:] == (width, 1) for one in parts), "a token's lie together"
        assert queries.dtype is keys.dtype is values.dtype, "computed in one dtype"
        assert memory.dtype in (keys.dtype, E4M3), "kept as it was computed, or in fp8"
        if angles is not None:
            cos, sin = angles
            assert cos.dtype is sin.dtype is queries.dtype is keys.dtype, "turned in one dtype"
            assert cos.stride(0) == sin.stride(0), "from one table"
        told = (c_int64 * 9)(
            *(n for one in parts for n in (one.data_ptr(), one.shape[1], one.stride(0)))
        )
        self._turn_and_write.call(
            told,
            None if angles is None else angles[0].data_ptr(),
            None if angles is None else angles[1].data_ptr(),
            0 if angles is None else angles[0].stride(0),
            memory.data_ptr(),
            slots.data_ptr(),
            tokens,
            width,
            keys.element_size(),
            FORMATS[keys.dtype],
            memory.dtype is E4M3,
            torch.get_num_threads(),
        )

    def gumbel_argmax(self, logits: Tensor, keys: Tensor) -> Tensor:
        """The largest logit plus noise: [rows, vocabulary] float32 to [rows] int64 tokens.

        `keys` [rows, 2] int64. The noise is that of engine/sampling/noise.py, within 1e-5.
        """
        assert logits.dtype is torch.float32, "as noise is"
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        rows, vocabulary = logits.shape
        tokens, keys = keys.new_empty(rows), keys.contiguous()
        self._gumbel_argmax.call(
            logits.data_ptr(),
            logits.stride(0),
            keys.data_ptr(),
            tokens.data_ptr(),
            rows,
            vocabulary,
            torch.get_num_threads(),
        )
        return tokens

    def write(self, memory: Tensor, slots: Tensor, rows: Tensor) -> None:
        """Write [tokens, heads, width] to the rows `slots` [tokens * heads] of `memory`."""
        tokens, heads, width = rows.shape
        assert memory.dtype in (rows.dtype, E4M3), "kept as it was computed, or in fp8"
        if rows.stride()[1:] != (width, 1):
            rows = rows.contiguous()
        slots = slots.contiguous()
        self._write.call(
            (c_int64 * 3)(rows.data_ptr(), heads, rows.stride(0)),
            memory.data_ptr(),
            slots.data_ptr(),
            tokens,
            width,
            FORMATS[rows.dtype],
            memory.dtype is E4M3,
            torch.get_num_threads(),
        )


def open_kernels(wanted: str) -> CpuKernels | None:
    """The kernels; None if `torch` is `wanted`, or if `auto` is and they are not available.

    With `native`, raises KernelsUnavailable instead.
    """
    if wanted == "torch":
        log.info("kernels: plain torch, as demanded")
        return None
    try:
        kernels = CpuKernels(library())
    except KernelsUnavailable as error:
        if wanted == "native":
            raise
        log.warning("kernels: plain torch, which is slower: %s", error)
        return None
    log.info("kernels: %s", kernels.path)
    return kernels
