"""What a forward pass asks of the batch that it is for."""

from typing import Protocol

from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.rotation import Rotation
from engine.kernels.contract import HeadNorms, Latents
from engine.kernels.style import AttentionStyle


class Batch(Protocol):
    """Where each token stands, where its KV goes, and what it may look at."""

    @property
    def memory(self) -> KvMemory:
        """Where KV is kept."""

    @property
    def positions(self) -> Tensor:
        """[tokens] int64: the place of each in its own sequence."""

    def turn_and_write(
        self,
        layer: int,
        parts: tuple[Tensor, Tensor, Tensor],
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Rotate queries and keys, and keep keys and values; the queries, rotated.

        [tokens, heads or kv_heads, width] each; they may be parts of one product, and what was
        in them is gone afterwards. With `norms` queries and keys are normed before. Nothing is
        rotated without a `rotation`.
        """

    def turn_and_write_latents(self, layer: int, latents: Latents, rotation: Rotation) -> None:
        """Rotate queries, and keep rows with their latents normed and their keys rotated."""

    def write(self, layer: int, *parts: Tensor) -> None:
        """Keep keys and values, or latents, [tokens, kv_heads, width] each, as they are."""

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """[tokens, heads, width] against the layer's KV; [tokens, heads * value width]."""
