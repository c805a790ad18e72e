"""Where a model's weights go, how they are kept, and what multiplies them."""

from dataclasses import dataclass

import torch

from engine.checkpoints.storage import Storage
from engine.kernels.contract import Kernels
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True)
class Placement:
    """`group`: the ranks that share out the model; None: it is in one process.

    `storage` None: each weight is kept as a CPU wants it (engine/checkpoints/linear.py).
    """

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels | None = None
    group: RankGroup | None = None
    storage: Storage | None = None
