"""Where a model's weights go, and what multiplies them."""

from dataclasses import dataclass

import torch

from engine.kernels.contract import Kernels
from engine.sharding.group import Group


@dataclass(frozen=True, slots=True)
class Placement:
    """`group`: the ranks that share out the model; None: it is in one process."""

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels | None = None
    group: Group | None = None
