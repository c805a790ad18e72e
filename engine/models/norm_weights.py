"""The tensors of norms."""

import torch

from engine.checkpoints.weight_loader import WeightLoader
from engine.models.config import ModelConfig
from engine.models.norm import Norm


def read_norm(loader: WeightLoader, config: ModelConfig, name: str, size: int) -> Norm:
    """Read a norm; 1 + weight is computed and kept in float32, where little of it is lost."""
    weight = loader.take(f"{name}.weight", size)
    weight = weight.float() + 1 if config.norm_adds_one else weight
    return Norm(weight, config.norm_eps, loader.kernels)


def unweighted_norm(loader: WeightLoader, config: ModelConfig, size: int) -> Norm:
    """One that has no weights."""
    ones = torch.ones(size, dtype=loader.dtype, device=loader.device)
    return Norm(ones, config.norm_eps, loader.kernels)
