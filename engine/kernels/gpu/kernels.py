"""The GPU's kernels behind the contracts that models and batches call."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.kernels.contract import (
    AttentionIo,
    Chunks,
    Contexts,
    DualOutputNorms,
    HeadNorm,
    Latents,
    LayerKv,
    QuantizedOutputKernels,
    RecurrentIo,
)
from engine.kernels.contract import HeadNorms as Norms
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.fusion import NO_FUSION, FewRowProducts, Fusion
from engine.kernels.gating import sigmoid_gated, squared_relu
from engine.kernels.gpu.decode_attention import decode_attention
from engine.kernels.gpu.delta_net import delta_net_step
from engine.kernels.gpu.delta_net_chunks import delta_net_chunks
from engine.kernels.gpu.few_row_experts import mix_few_rows
from engine.kernels.gpu.few_rows import MOST_ROWS, few_row_scores, few_rows
from engine.kernels.gpu.few_rows_fp8 import MOST_FP8_ROWS, few_rows_fp8
from engine.kernels.gpu.gates import ACTIVATIONS, gated, gated_quantized
from engine.kernels.gpu.mamba import mamba_step
from engine.kernels.gpu.mamba_chunks import mamba_chunks
from engine.kernels.gpu.norms import (
    add_norm_dual,
    add_norm_quantized,
    add_rms_norm,
    norm_dual,
    norm_quantized,
    rms_norm,
)
from engine.kernels.gpu.prefill_attention import prefill_attention
from engine.kernels.gpu.recurrent_call import fits_kernels
from engine.kernels.gpu.rounding import quantize_rows
from engine.kernels.gpu.short_convolution import convolution_chunks, convolution_step
from engine.kernels.gpu.turn_and_write import HeadNorms, turn, turn_and_write, write
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import LayerStates, RecurrentWeights
from engine.kernels.rows import DualRows, QuantizedRows
from engine.kernels.short_convolution import ConvolutionWeights
from engine.kernels.style import AttentionStyle
from engine.kernels.weights import Fp8Weight


@dataclass(frozen=True, slots=True)
class TritonQuantizedOutput:
    """See QuantizedOutputKernels in engine/kernels/contract.py; takes no extra launch."""

    group: int | None

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> QuantizedRows:
        """See QuantizedOutputKernels, here and below."""
        return norm_quantized(inputs, weight, eps, self.group)

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[QuantizedRows, Tensor]:
        """See QuantizedOutputKernels."""
        return add_norm_quantized(inputs, residual, weight, eps, scale, self.group)

    def gated(
        self, gate_up: Tensor, gate: str, clamp: tuple[float, float] | None = None
    ) -> QuantizedRows:
        """See QuantizedOutputKernels."""
        return gated_quantized(gate_up, gate, self.group, *(clamp or ()))

    def squared_relu(self, rows: Tensor) -> QuantizedRows:
        """See QuantizedOutputKernels; three launches yet."""
        return quantize_rows(squared_relu(rows), self.group)


@dataclass(frozen=True, slots=True)
class TritonDualOutput:
    """See DualOutputNorms in engine/kernels/contract.py; one launch writes both outputs."""

    group: int | None

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> DualRows:
        """See DualOutputNorms, here and below."""
        return norm_dual(inputs, weight, eps, self.group)

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[DualRows, Tensor]:
        """See DualOutputNorms."""
        return add_norm_dual(inputs, residual, weight, eps, scale, self.group)


class TritonKernels(TorchKernels):
    """See PagedKernels in engine/kernels/contract.py; a twin is used if there is no kernel."""

    @property
    def gates(self) -> Collection[str]:
        """See Kernels, here and below."""
        return ACTIVATIONS

    @property
    def few_row_products(self) -> FewRowProducts | None:
        """See Kernels."""
        return FewRowProducts(
            _multiply_few, few_row_scores, mix_few_rows, MOST_ROWS, MOST_FP8_ROWS
        )

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Kernels."""
        return rms_norm(inputs, weight, eps)

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See Kernels."""
        return add_rms_norm(inputs, residual, weight, eps, scale)

    def gated(
        self, gate_up: Tensor, gate: str, clamp: tuple[float, float] | None = None
    ) -> Tensor:
        """See Kernels."""
        return gated(gate_up, gate, *(clamp or ()))

    def sigmoid_gated(self, rows: Tensor, gates: Tensor) -> Tensor:
        """See Kernels, in plain torch yet."""
        return sigmoid_gated(rows, gates)

    def added(self, rows: Tensor, others: Tensor) -> Tensor:
        """See Kernels, in plain torch."""
        return rows + others

    def squared_relu(self, rows: Tensor) -> Tensor:
        """See Kernels, likewise."""
        return squared_relu(rows)

    def quantized(self, group: int | None) -> QuantizedOutputKernels:
        """See QuantizingKernels."""
        return TritonQuantizedOutput(group)

    def dual(self, group: int | None) -> DualOutputNorms:
        """See QuantizingKernels."""
        return TritonDualOutput(group)

    def decode_attention(
        self, io: AttentionIo, kv: LayerKv, contexts: Contexts, style: AttentionStyle
    ) -> None:
        """See PagedKernels."""
        (memory, layer, value_width), out = kv, io.output
        decode_attention(io.queries, memory, layer, *contexts, style, value_width, out=out)

    def prefill_attention(
        self,
        io: AttentionIo,
        kv: LayerKv,
        contexts: Contexts,
        chunks: Chunks,
        style: AttentionStyle,
    ) -> None:
        """See PagedKernels."""
        (memory, layer, value_width), (tables, lengths) = kv, contexts
        prefill_attention(
            io.queries, memory, layer, tables, chunks.firsts, lengths, chunks.longest, style,
            value_width, out=io.output,
        )  # fmt: skip

    def turn_and_write(
        self,
        parts: tuple[Tensor, Tensor, Tensor],
        rotation: tuple[Tensor, Tensor] | None,
        kv: LayerKv,
        slots: Tensor,
        norms: Norms | None,
    ) -> Tensor:
        """See PagedKernels."""
        rope, positions = (None, slots) if rotation is None else rotation
        own = None
        if norms is not None:
            own = HeadNorms(norms[0].weight, norms[1].weight, norms[1].eps)
        return turn_and_write(*parts, rope, positions, kv.memory, kv.layer, slots, own)

    def turn(
        self, queries: Tensor, rotation: tuple[Tensor, Tensor] | None, norm: HeadNorm | None
    ) -> Tensor:
        """See PagedKernels."""
        if rotation is None:
            return queries if norm is None else norm(queries)
        weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        return turn(queries, *rotation, weight, eps)

    def turn_and_write_latents(
        self, latents: Latents, rotation: tuple[Tensor, Tensor], kv: LayerKv, slots: Tensor
    ) -> None:
        """See PagedKernels."""
        rows, norm, queries, turned = latents
        turn_and_write(
            queries, rows, None, *rotation, kv.memory, kv.layer, slots,
            HeadNorms(None, norm.weight, norm.eps), out=turned,
        )  # fmt: skip

    def write(self, parts: Sequence[Tensor], kv: LayerKv, slots: Tensor) -> None:
        """See PagedKernels."""
        write(parts, kv.memory, kv.layer, slots)

    def recurrent_step(
        self,
        io: RecurrentIo,
        states: LayerStates,
        contexts: Contexts,
        weights: RecurrentWeights,
    ) -> None:
        """See PagedKernels. Other nets, and heads of odd widths, are the twin's."""
        fits = fits_kernels(weights.shape)
        if fits and isinstance(weights, DeltaWeights):
            delta_net_step(io.inputs, states, contexts, weights, out=io.output)
        elif fits and isinstance(weights, MambaWeights):
            mamba_step(io.inputs, states, contexts, weights, out=io.output)
        elif isinstance(weights, ConvolutionWeights):
            convolution_step(io.inputs, states, contexts, weights, out=io.output)
        else:
            super().recurrent_step(io, states, contexts, weights)

    def recurrent_chunks(
        self,
        io: RecurrentIo,
        states: LayerStates,
        contexts: Contexts,
        chunks: Chunks,
        weights: RecurrentWeights,
    ) -> None:
        """See PagedKernels."""
        fits = fits_kernels(weights.shape)
        if fits and isinstance(weights, DeltaWeights):
            delta_net_chunks(io.inputs, states, contexts, chunks, weights, out=io.output)
        elif fits and isinstance(weights, MambaWeights):
            mamba_chunks(io.inputs, states, contexts, chunks, weights, out=io.output)
        elif isinstance(weights, ConvolutionWeights):
            convolution_chunks(io.inputs, states, contexts, chunks, weights, out=io.output)
        else:
            super().recurrent_chunks(io, states, contexts, chunks, weights)


def _multiply_few(
    rows: Tensor,
    weight: Tensor | Fp8Weight,
    bias: Tensor | None = None,
    fusion: Fusion = NO_FUSION,
) -> Tensor:
    """See FewRowProduct."""
    if isinstance(weight, Fp8Weight):
        return few_rows_fp8(rows, weight, bias, fusion)
    return few_rows(rows, weight, bias, fusion)
