"""A model's pooling tasks, and how its hidden states are pooled.

Torch-free: a door reads the same to know its labels, and what it has to refuse.
"""

from typing import Annotated, Literal

import msgspec

from engine.request import PoolingTask

Size = Annotated[int, msgspec.Meta(ge=1)]
Kind = Literal["last", "mean", "cls"]
Activation = Literal["softmax", "sigmoid", "identity"]


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """A layer behind the pooling, in a folder of its own within the checkpoint's."""

    path: str
    inputs: Size
    outputs: Size
    bias: bool = True
    activation: Literal["identity", "tanh", "relu", "gelu"] = "tanh"


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed for a checkpoint; without anything said it generates and makes embeddings.

    `labels` are a classifier's classes, in the order of its head's outputs. `dimensions` are
    the lengths that an embedding may be cut to, none at all for any; None: it may not be cut.
    The first of `tasks` is meant where nobody says.
    """

    kind: Kind = "last"
    normalize: bool = True
    activation: Activation = "softmax"
    labels: tuple[str, ...] = ()
    dimensions: tuple[int, ...] | None = None
    dense: tuple[Dense, ...] = ()
    generates: bool = True
    tasks: tuple[PoolingTask, ...] = ("embed", "token_embed")

    def width(self, hidden_size: int) -> int:
        """How many numbers an embedding has."""
        return self.dense[-1].outputs if self.dense else hidden_size

    @property
    def scores(self) -> bool:
        """Whether two texts have a score: by their embeddings, or by a head of one output."""
        return len(self.labels) <= 1


DEFAULT_POOLING = PoolingConfig()
"""What a checkpoint that says nothing of pooling can be asked."""
