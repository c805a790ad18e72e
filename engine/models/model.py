"""What the engine asks of a model, whoever wrote its layers."""

from typing import Protocol

from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape


class ModelShape(Protocol):
    """The sizes of a model that the engine needs to know."""

    @property
    def vocab_size(self) -> int:
        """Tokens are below it."""

    @property
    def hidden_size(self) -> int:
        """Numbers that `Model.forward` makes of a token."""

    @property
    def max_positions(self) -> int:
        """Tokens of the longest sequence."""


class Model(Protocol):
    """Token ids in, hidden states out, KV written on the way."""

    @property
    def config(self) -> ModelShape:
        """What the engine has to know."""

    @property
    def kv_shape(self) -> KvShape:
        """What is kept of a token."""

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """[tokens] ids to [tokens, hidden], ready for `logits`."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] to [rows, vocabulary], float32."""
