"""An EAGLE-3 head: one layer, in a checkpoint of its own (Li et al. 2025, "EAGLE-3: Scaling up
Inference Acceleration of Large Language Models via Training-Time Test").

It reads the residual stream of the model before a few layers, through one product, and may draw
from some of the model's tokens only. Its attention reads a token's embedding beside the state.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import Linear
from engine.kernels.rows import whole_rows
from engine.models.config import ModelConfig
from engine.models.draft_head import IMPOSSIBLE
from engine.models.layer import Attention, Mlp
from engine.models.norm import Norm


@dataclass(frozen=True, slots=True, eq=False)
class EagleLayer:
    """The layer of a head. `norm_before_residual`: see EagleConfig."""

    embedding_norm: Norm
    state_norm: Norm
    attention: Attention  # of [tokens, 2 * hidden]: the token's half is first
    mlp_norm: Norm
    mlp: Mlp
    norm_before_residual: bool = False

    def forward(
        self, embedded: Tensor, states: Tensor, rotations: list[Rotation], batch: Batch
    ) -> Tensor:
        """[tokens, hidden] each."""
        normed = self.state_norm(states)
        stream = normed if self.norm_before_residual else states
        both = torch.cat((self.embedding_norm(embedded), normed), 1)
        inputs, stream = self.mlp_norm.add(self.attention(both, rotations, batch), stream, 1.0)
        return stream + self.mlp(inputs)


@dataclass(slots=True, eq=False)
class EagleHead:
    """See DraftHead. The head draws from the tokens `words`; None: from all. `embedding` is the
    model's, unless the head has its own.
    """

    config: ModelConfig
    embedding: Tensor  # [vocabulary, hidden]
    join: Linear  # [tokens, inputs * the model's hidden size] to [tokens, hidden]
    layer: EagleLayer
    norm: Norm
    output: Linear
    words: Tensor | None  # [words] int64
    rope: Tensor
    kv_shape: KvShape  # the model's: all layers are in one KV memory
    states: Tensor = field(init=False)  # [rows, hidden]

    def __post_init__(self) -> None:
        """No states, until `make_room`."""
        self.make_room(0)

    def make_room(self, rows: int) -> None:
        """See DraftHead."""
        self.states = self.rope.new_zeros(rows, self.config.hidden_size)

    def take_in(self, states: Tensor, *, own: bool) -> None:
        """See DraftHead."""
        self.states[: len(states)].copy_(states if own else self.join(states))

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """See Model."""
        embedded = F.embedding(tokens, self.embedding)
        rotations = [Rotation(self.rope, batch.positions)]
        return self.layer.forward(embedded, self.states[: len(tokens)], rotations, batch)

    def logits(self, hidden: Tensor) -> Tensor:
        """See Model: the logits of the token behind the next one."""
        logits = whole_rows(self.output(self.norm(hidden))).float()
        if self.words is None:
            return logits
        whole = logits.new_full((len(logits), self.config.vocab_size), IMPOSSIBLE)
        return whole.index_copy_(1, self.words, logits)
