"""What drafts from a model's hidden states: the contract of draft heads, and what they read."""

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from engine.models.model import Model

IMPOSSIBLE = -1e30
"""The logit of a token that is never drafted. Finite: a row in which only such tokens are
allowed is not one in which none is.
"""


class DraftHead(Model, Protocol):
    """See Model: a head that predicts one token further than the model that it belongs to.

    It reads a hidden state at a position and the token behind that position, and predicts the
    token behind that one. Position p of a sequence is that of the state; its token is the one
    at p + 1. The result of `forward` is itself a hidden state, for the position behind: so a
    head drafts further tokens. It attends as any layer does, so it has KV of its own: one more
    layer in every block, behind those of the model.
    """

    def make_room(self, rows: int) -> None:
        """Allocate states for batches of so many tokens, before anything is captured."""

    def take_in(self, states: Tensor, *, own: bool) -> None:
        """Set the states that `forward` reads next, one for each token.

        [tokens, width]: what the model told, or with `own` what the head's last pass returned.
        """


@dataclass(slots=True, eq=False)
class LayerInputs:
    """The residual stream before some `layers` of a model, kept at fixed addresses.

    For heads that read more than what the last layer returns. `rows` [rows, layers * hidden]
    has them side by side; the next forward pass overwrites it.
    """

    layers: tuple[int, ...]
    rows: Tensor = field(init=False)

    def make_room(self, rows: int, like: Tensor) -> None:
        """Allocate for batches of so many tokens; `like` [any, hidden] has width and dtype."""
        self.rows = like.new_zeros(rows, len(self.layers) * like.shape[1])

    def keep(self, layer: int, stream: Tensor) -> None:
        """Keep the stream [tokens, hidden] before a layer, as often as that layer is read."""
        width = stream.shape[1]
        for at, one in enumerate(self.layers):
            if one == layer:
                self.rows[: len(stream), at * width : (at + 1) * width].copy_(stream)
