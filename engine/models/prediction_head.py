"""A draft head that a checkpoint has behind its last layer, for multi-token prediction.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2. It reads what the model's last
layer returns, normalised.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.attention.batch import Batch
from engine.attention.kv_memory import KvShape
from engine.attention.rotation import Rotation
from engine.checkpoints.linear import Linear
from engine.models.config import ModelConfig
from engine.models.layer import Layer, add_scaled
from engine.models.norm import Norm


@dataclass(slots=True, eq=False)
class PredictionHead:
    """See DraftHead. `embedding` and `output` are the model's own, unless the checkpoint has
    others.
    """

    config: ModelConfig
    embedding: Tensor  # [vocabulary, hidden]
    embedding_norm: Norm
    state_norm: Norm
    join: Linear  # [tokens, 2 * hidden] to [tokens, hidden]: the token's half is first
    layer: Layer
    norm: Norm
    output: Linear
    ropes: tuple[Tensor, ...]
    kv_shape: KvShape  # the decoder's: all layers are in one KV memory
    states: Tensor = field(init=False)  # [rows, hidden]

    def __post_init__(self) -> None:
        """No states, until `make_room`."""
        self.make_room(0)

    def make_room(self, rows: int) -> None:
        """See DraftHead."""
        self.states = self.embedding.new_zeros(rows, self.config.hidden_size)

    def take_in(self, states: Tensor, *, own: bool) -> None:
        """See DraftHead: both kinds of states are alike."""
        self.states[: len(states)].copy_(states)

    def forward(self, tokens: Tensor, batch: Batch) -> Tensor:
        """See Model."""
        embedded = self.embedding_norm(F.embedding(tokens, self.embedding))
        states = self.state_norm(self.states[: len(tokens)])
        hidden = self.join(torch.cat((embedded, states), 1))
        rotations = [Rotation(rope, batch.positions) for rope in self.ropes]
        hidden, made = self.layer.forward(hidden, None, rotations, batch)
        return add_scaled(hidden, made, self.config.residual_scale)

    def logits(self, hidden: Tensor) -> Tensor:
        """See Model: the logits of the token behind the next one."""
        logits: Tensor = self.output(self.norm(hidden)).float()
        return logits
