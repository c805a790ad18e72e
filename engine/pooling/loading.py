"""Loads the weights after the model: a classifier head, sentence-transformers' layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.store import open_store
from engine.checkpoints.weight_loader import open_weights
from engine.models.weights import load_classes
from engine.pooling.config import Dense, PoolingConfig
from engine.pooling.pooler import Pooler

THROUGH: Mapping[str, Callable[[Tensor], Tensor]] = {
    "identity": torch.clone,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
}


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """One layer [outputs, inputs] over a pooled vector, in float32."""

    weight: Tensor
    bias: Tensor | None
    through: Callable[[Tensor], Tensor]

    def __call__(self, rows: Tensor) -> Tensor:
        """[rows, inputs] to [rows, outputs]."""
        return self.through(F.linear(rows, self.weight, self.bias))


def load_pooler(
    checkpoint: Checkpoint, config: PoolingConfig, hidden_size: int, device: torch.device
) -> Pooler:
    """The pooler of a decoder; raises UnusableCheckpoint."""
    if not config.labels:
        return Pooler(config, None, load_layers(checkpoint.folder, config, device))
    return Pooler(config, load_classes(checkpoint, len(config.labels), hidden_size, device))


def load_layers(
    folder: Path, config: PoolingConfig, device: torch.device
) -> tuple[DenseLayer, ...]:
    """The layers that `modules.json` names; raises UnusableCheckpoint."""
    files = [(folder / one.path / "model.safetensors", one) for one in config.dense]
    return tuple(_layer(file, one, device) for file, one in files)


def _layer(file: Path, dense: Dense, device: torch.device) -> DenseLayer:
    with open_weights(open_store([file], device), torch.float32, device) as loader:
        weight = loader.take("linear.weight", dense.outputs, dense.inputs)
        bias = loader.take("linear.bias", dense.outputs) if dense.bias else None
    return DenseLayer(weight, bias, THROUGH[dense.activation])
