"""The reference of the GPU's kernels in plain torch, which runs anywhere, slowly."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.contract import (
    AttentionIo,
    Chunks,
    Contexts,
    DualOutputNorms,
    HeadNorm,
    HeadNorms,
    Kernels,
    Latents,
    LayerKv,
    Linear,
    QuantizedOutputKernels,
    RecurrentIo,
)
from engine.kernels.fusion import FewRowProducts
from engine.kernels.gating import sigmoid_gated, squared_relu
from engine.kernels.gpu.few_row_experts import mix_few_rows_twin
from engine.kernels.gpu.few_rows import MOST_ROWS, few_row_scores_twin, few_rows_twin
from engine.kernels.gpu.few_rows_fp8 import MOST_FP8_ROWS
from engine.kernels.gpu.gates import ACTIVATIONS, gated_twin
from engine.kernels.gpu.norms import add_rms_norm_twin, rms_norm_twin
from engine.kernels.gpu.recurrent_twins import chunks_twin, step_twin
from engine.kernels.recurrent import LayerStates, RecurrentWeights
from engine.kernels.rows import DualRows, QuantizedRows, quantize_rows_twin
from engine.kernels.stored import copyable, to_stored
from engine.kernels.style import AttentionStyle

TOKENS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class TorchQuantizedOutput:
    """See QuantizedOutputKernels in engine/kernels/contract.py: quantizes kernels' output."""

    kernels: Kernels
    group: int | None

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> QuantizedRows:
        """See QuantizedOutputKernels, here and below."""
        return quantize_rows_twin(self.kernels.norm(inputs, weight, eps), self.group)

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[QuantizedRows, Tensor]:
        """See QuantizedOutputKernels."""
        normed, added = self.kernels.add_norm(inputs, residual, weight, eps, scale)
        return quantize_rows_twin(normed, self.group), added

    def gated(
        self, gate_up: Tensor, gate: str, clamp: tuple[float, float] | None = None
    ) -> QuantizedRows:
        """See QuantizedOutputKernels."""
        return quantize_rows_twin(self.kernels.gated(gate_up, gate, clamp), self.group)

    def squared_relu(self, rows: Tensor) -> QuantizedRows:
        """See QuantizedOutputKernels."""
        return quantize_rows_twin(self.kernels.squared_relu(rows), self.group)


@dataclass(frozen=True, slots=True)
class TorchDualOutput:
    """See DualOutputNorms in engine/kernels/contract.py: kernels' output, and quantized."""

    kernels: Kernels
    group: int | None

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> DualRows:
        """See DualOutputNorms, here and below."""
        return self._both(self.kernels.norm(inputs, weight, eps))

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[DualRows, Tensor]:
        """See DualOutputNorms."""
        normed, added = self.kernels.add_norm(inputs, residual, weight, eps, scale)
        return self._both(normed), added

    def _both(self, normed: Tensor) -> DualRows:
        return DualRows(normed, quantize_rows_twin(normed, self.group))


class TorchKernels:
    """See PagedKernels in engine/kernels/contract.py."""

    @property
    def gates(self) -> Collection[str]:
        """See Kernels, here and below."""
        return ACTIVATIONS

    @property
    def few_row_products(self) -> FewRowProducts | None:
        """See Kernels."""
        return FewRowProducts(
            few_rows_twin, few_row_scores_twin, mix_few_rows_twin, MOST_ROWS, MOST_FP8_ROWS
        )

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear | None:
        """None: torch's."""
        del weight, bias
        return None

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Kernels."""
        return rms_norm_twin(inputs, weight, eps)

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See Kernels."""
        return add_rms_norm_twin(inputs, residual, weight, eps, scale)

    def gated(
        self, gate_up: Tensor, gate: str, clamp: tuple[float, float] | None = None
    ) -> Tensor:
        """See Kernels."""
        return gated_twin(gate_up, gate, *(clamp or ()))

    def sigmoid_gated(self, rows: Tensor, gates: Tensor) -> Tensor:
        """See Kernels."""
        return sigmoid_gated(rows, gates)

    def added(self, rows: Tensor, others: Tensor) -> Tensor:
        """See Kernels, in plain torch."""
        return rows + others

    def squared_relu(self, rows: Tensor) -> Tensor:
        """See Kernels."""
        return squared_relu(rows)

    def quantized(self, group: int | None) -> QuantizedOutputKernels:
        """See QuantizingKernels."""
        return TorchQuantizedOutput(self, group)

    def dual(self, group: int | None) -> DualOutputNorms:
        """See QuantizingKernels."""
        return TorchDualOutput(self, group)

    def decode_attention(
        self, io: AttentionIo, kv: LayerKv, contexts: Contexts, style: AttentionStyle
    ) -> None:
        """See PagedKernels."""
        queries = io.queries
        keys, values = _read(kv, contexts.tables)  # [sequences, kv_heads, seen, ..]
        count, _, width = queries.shape
        kv_heads = keys.shape[1]
        grouped = queries.view(count, kv_heads, -1, width).float()
        scores = grouped @ keys.float().transpose(2, 3) * style.scale
        if style.softcap is not None:
            scores = style.softcap * torch.tanh(scores / style.softcap)
        at = torch.arange(keys.shape[2], device=keys.device)
        lengths = contexts.lengths[:, None]
        seen = at < lengths
        if style.window is not None:
            seen &= at >= lengths - style.window
        scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
        if style.sinks is not None:
            sinks = style.sinks.float().view(1, kv_heads, -1, 1).expand(count, -1, -1, 1)
            scores = torch.cat((scores, sinks), -1)
        weights = scores.softmax(-1).nan_to_num(0.0)[..., : keys.shape[2]]
        values = values.float().masked_fill(~seen[:, None, :, None], 0.0)
        io.output.copy_((weights @ values).flatten(1))

    def prefill_attention(
        self,
        io: AttentionIo,
        kv: LayerKv,
        contexts: Contexts,
        chunks: Chunks,
        style: AttentionStyle,
    ) -> None:
        """See PagedKernels. Each query becomes a sequence that ends with it, or is padding."""
        queries, ends = io.queries, chunks.firsts[1:].long()
        rows = torch.arange(len(queries), device=queries.device)
        owners = torch.searchsorted(ends, rows, right=True).clamp(max=len(ends) - 1)
        behind = ends[owners] - rows - 1
        lengths = torch.where(behind >= 0, contexts.lengths[owners] - behind, 0).int()
        for first in range(0, len(queries), TOKENS_AT_ONCE):
            some = slice(first, first + TOKENS_AT_ONCE)
            ours = Contexts(contexts.tables[owners[some]], lengths[some])
            part = AttentionIo(queries[some], io.output[some])
            self.decode_attention(part, kv, ours, style)

    def turn_and_write(
        self,
        parts: tuple[Tensor, Tensor, Tensor],
        rotation: tuple[Tensor, Tensor] | None,
        kv: LayerKv,
        slots: Tensor,
        norms: HeadNorms | None,
    ) -> Tensor:
        """See PagedKernels."""
        queries, keys, values = parts
        if norms is not None:
            queries, keys = norms[0](queries), norms[1](keys)
        if rotation is not None:
            table, positions = rotation
            cos, sin = table[positions].unsqueeze(2).unbind(1)
            queries, keys = _turned(queries, cos, sin), _turned(keys, cos, sin)
        self.write((keys, values), kv, slots)
        return queries

    def turn(
        self, queries: Tensor, rotation: tuple[Tensor, Tensor] | None, norm: HeadNorm | None
    ) -> Tensor:
        """See PagedKernels."""
        queries = queries if norm is None else norm(queries)
        if rotation is None:
            return queries
        table, positions = rotation
        return _turned(queries, *table[positions].unsqueeze(2).unbind(1))

    def turn_and_write_latents(
        self, latents: Latents, rotation: tuple[Tensor, Tensor], kv: LayerKv, slots: Tensor
    ) -> None:
        """See PagedKernels."""
        rows, norm, queries, turned = latents
        table, positions = rotation
        cos, sin = table[positions].unsqueeze(2).unbind(1)
        latent, key = rows.split((len(norm.weight), rows.shape[2] - len(norm.weight)), 2)
        turned.copy_(_turned(queries, cos, sin))
        self.write((torch.cat((norm(latent), _turned(key, cos, sin)), 2),), kv, slots)

    def write(self, parts: Sequence[Tensor], kv: LayerKv, slots: Tensor) -> None:
        """See PagedKernels. Padding rows repeat the first real row's write.

        If all rows are padding, the existing contents are written again.
        """
        used = slots >= 0
        rows = torch.arange(len(slots), device=slots.device)
        rows = torch.where(used, rows, used.int().argmax())
        at, size = slots[rows].clamp(min=0), kv.memory.shape[4]
        block, token = at // size, at % size
        for index, part in enumerate(parts):
            ours = copyable(kv.memory)[:, kv.layer, index].transpose(1, 2)  # [block, token, ..]
            fresh = copyable(to_stored(part[rows], kv.memory.dtype))
            fresh = torch.where(used.any(), fresh, ours[block, token])
            ours.index_put_((block, token), fresh)

    def recurrent_step(
        self,
        io: RecurrentIo,
        states: LayerStates,
        contexts: Contexts,
        weights: RecurrentWeights,
    ) -> None:
        """See PagedKernels."""
        step_twin(io, states, contexts, weights)

    def recurrent_chunks(
        self,
        io: RecurrentIo,
        states: LayerStates,
        contexts: Contexts,
        chunks: Chunks,
        weights: RecurrentWeights,
    ) -> None:
        """See PagedKernels."""
        chunks_twin(io, states, contexts, chunks, weights)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate as Rotation in engine/attention/rotation.py does."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


def _read(kv: LayerKv, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values in the tables' blocks, [sequences, kv_heads, tokens, width] each; values
    may be narrower.
    """
    ours = kv.memory[:, kv.layer]  # [block, part, kv_head, token, width]
    ids = tables.long().clamp(0, len(ours) - 1)  # ids behind a sequence's end are arbitrary
    parts = ours[ids].permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    return parts[0], parts[-1][..., : kv.value_width]
