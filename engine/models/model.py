"""The contract between the engine and a model, ours or transformers'."""

from typing import Protocol

from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape


class ModelShape(Protocol):
    """The sizes of a model that the engine needs to know."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""

    @property
    def hidden_size(self) -> int:
        """The width of a hidden state."""

    @property
    def max_positions(self) -> int:
        """Tokens of the longest sequence."""


class Model(Protocol):
    """Token ids in, hidden states out, KV written on the way."""

    @property
    def config(self) -> ModelShape:
        """The model's sizes."""

    @property
    def kv_shape(self) -> KvShape:
        """The shape of one token's KV."""

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """[tokens] ids to [tokens, hidden], ready for `logits`."""

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] to [rows, vocabulary], float32."""
