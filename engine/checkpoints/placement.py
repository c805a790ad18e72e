"""Where a model's weights go: dtype, device, kernels, ranks and linear layers."""

from dataclasses import dataclass

import torch

from engine.checkpoints.storage import LinearFactory
from engine.kernels.contract import Kernels
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True)
class Placement:
    """How to load a model. `group`: the tensor-parallel ranks; None: a single process.

    `storage` None: engine/checkpoints/linear.py makes the linear layers, for a CPU.
    """

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels | None = None
    group: RankGroup | None = None
    storage: LinearFactory | None = None
