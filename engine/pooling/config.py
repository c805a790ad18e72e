"""A model's pooling tasks, and how its hidden states are pooled.

Torch-free: HTTP servers read it as well, for the labels and for requests to refuse.
"""

from typing import Annotated, Literal

import msgspec

from engine.request import PoolingTask

Size = Annotated[int, msgspec.Meta(ge=1)]
Kind = Literal["last", "mean", "cls"]
Activation = Literal["softmax", "sigmoid", "identity"]


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer after the pooling, in its own folder inside the checkpoint's."""

    path: str
    inputs: Size
    outputs: Size
    bias: bool = True
    activation: Literal["identity", "tanh", "relu", "gelu"] = "tanh"


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Fixed for a checkpoint; by default it generates and makes embeddings.

    `labels` are a classifier's classes, in the order of its head's outputs. `dimensions` are
    the lengths to which an embedding may be truncated; empty: any; None: it may not be
    truncated. The first of `tasks` is the default.
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
        """The length of an embedding."""
        return self.dense[-1].outputs if self.dense else hidden_size

    @property
    def scores(self) -> bool:
        """Whether two texts can be scored: by embeddings, or by a head with one output."""
        return len(self.labels) <= 1


DEFAULT_POOLING = PoolingConfig()
"""The config of a checkpoint that says nothing about pooling."""
