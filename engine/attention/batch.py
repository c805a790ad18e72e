"""The contract between a model's forward pass and the batch that it computes."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from engine.attention.kv_memory import KvMemory
from engine.attention.latents import LatentPart, LatentSizes
from engine.attention.rotation import Rotation
from engine.kernels.contract import HeadNorm, HeadNorms, Latents
from engine.kernels.recurrent import RecurrentInputs, RecurrentWeights
from engine.kernels.style import AttentionStyle


class Batch(Protocol):
    """Each token's position, where its KV is written, and what it may attend to."""

    @property
    def memory(self) -> KvMemory:
        """The KV memory that is read and written."""

    @property
    def positions(self) -> Tensor:
        """[tokens] int64: the position of each in its own sequence."""

    def turn_and_write(
        self,
        layer: int,
        parts: tuple[Tensor, Tensor, Tensor],
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Rotate queries and keys, write keys and values to KV memory; returns the queries.

        `parts` are [tokens, heads or kv_heads, width] each; they may be views of one product,
        and are overwritten. With `norms` queries and keys are normed before. Nothing is rotated
        without a `rotation`.
        """

    def turn(
        self, layer: int, queries: Tensor, rotation: Rotation | None, norm: HeadNorm | None
    ) -> Tensor:
        """Norm and rotate [tokens, heads, width] queries alone, which read the `layer`'s KV.

        They may be overwritten.
        """

    def turn_and_write_latents(self, layer: int, latents: Latents, rotation: Rotation) -> None:
        """Rotate queries; write rows with normed latents and rotated keys to KV memory."""

    def latent_parts(self, sizes: LatentSizes) -> Sequence[LatentPart]:
        """How the rows attend over latents; none: all of them to latents, by `attend`."""

    def recurrence(
        self, layer: int, weights: RecurrentWeights, inputs: RecurrentInputs
    ) -> Tensor:
        """What a recurrent layer reads of its states, which it changes: [tokens, values].

        `layer` is counted among the layers that keep a state.
        """

    def write(self, layer: int, *parts: Tensor) -> None:
        """Write keys and values, or latents, [tokens, kv_heads, width] each, unchanged."""

    def attend(self, layer: int, style: AttentionStyle, queries: Tensor) -> Tensor:
        """Attend to the layer's KV: [tokens, heads, width] to [tokens, heads * value width]."""
