"""One layer of a decoder: norms, an attention, an MLP, each of one of several kinds or none."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.attention.batch import Batch
from engine.kernels.rows import Rows
from engine.models.norm import LayerNorm, Norm, add_normed, normed
from engine.models.rope import Rotations


class Attention(Protocol):
    """The attention of one layer, which also writes the layer's KV."""

    def __call__(self, normed: Rows, rotations: Rotations, batch: Batch) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""


class Mlp(Protocol):
    """The feed-forward part of one layer, dense or with experts."""

    def __call__(self, normed: Rows) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""


class FewRowsAttention(Protocol):
    """Norm, attention and residual, fused for few rows (engine/models/few_rows.py)."""

    def takes(self, rows: int) -> bool:
        """Whether it can compute a step of so many rows."""

    def __call__(self, hidden: Tensor, rotations: Rotations, batch: Batch) -> Tensor:
        """The residual stream before to the one behind, [tokens, hidden] each."""


class FewRowsMlp(Protocol):
    """Norm, MLP and residual, likewise."""

    def takes(self, rows: int) -> bool:
        """See FewRowsAttention, here and below."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """See FewRowsAttention."""


class LayerEnd(Protocol):
    """What the stream goes through behind both parts (engine/models/layer_inputs.py)."""

    def __call__(self, stream: Tensor, own: Tensor | None) -> Tensor:
        """[tokens, hidden] to [tokens, hidden]."""


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Attention, then MLP, each with a norm before or after or both, and a residual around it.

    Layers of some families have only one of the two, or something behind them at their `end`.
    Both outputs are multiplied by `residual_scale` when they are added (Granite). Each half may
    have a fused computation for few rows.
    """

    attention: Attention | None
    mlp: Mlp | None
    attention_norm: LayerNorm | None = None
    attention_output_norm: Norm | None = None
    mlp_norm: LayerNorm | None = None
    mlp_output_norm: Norm | None = None
    residual_scale: float = 1.0
    few_attention: FewRowsAttention | None = None
    few_mlp: FewRowsMlp | None = None
    end: LayerEnd | None = None

    def forward(
        self,
        hidden: Tensor,
        made: Tensor | None,
        rotations: Rotations,
        batch: Batch,
        own: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream and the last part's output (`made`), [tokens, hidden] each.

        Takes the layer before's, returns this one's. `made` is not yet added to the stream, so
        that the next norm can be fused with the addition; None: it is added already. `own`
        [tokens, width] is the layer's own input, if the family has any.
        """
        if self.attention is not None:
            hidden, made = self._attend(self.attention, (hidden, made), rotations, batch)
        if self.mlp is not None:
            hidden, made = self._think(self.mlp, hidden, made)
        if self.end is not None:
            hidden, made = self.end(add_scaled(hidden, made, self.residual_scale), own), None
        return hidden, made

    def _attend(
        self,
        attention: Attention,
        stream: tuple[Tensor, Tensor | None],
        rotations: Rotations,
        batch: Batch,
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream and the attention's output, as `forward`."""
        hidden, made = stream
        scale, few = self.residual_scale, self.few_attention
        if few is not None and few.takes(len(hidden)):
            return few(add_scaled(hidden, made, scale), rotations, batch), None
        inputs, hidden = add_normed(self.attention_norm, made, hidden, scale)
        read = attention(inputs, rotations, batch)
        return hidden, normed(self.attention_output_norm, read)

    def _think(
        self, mlp: Mlp, hidden: Tensor, made: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """The residual stream and the MLP's output, likewise."""
        scale, few = self.residual_scale, self.few_mlp
        if few is not None and few.takes(len(hidden)):
            return few(add_scaled(hidden, made, scale)), None
        inputs, hidden = add_normed(self.mlp_norm, made, hidden, scale)
        return hidden, normed(self.mlp_output_norm, mlp(inputs))


def add_scaled(hidden: Tensor, made: Tensor | None, scale: float) -> Tensor:
    """The residual stream with a part's output, if that is not added yet."""
    return hidden if made is None else hidden.add(made, alpha=scale)
