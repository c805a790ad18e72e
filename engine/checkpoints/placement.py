"""Where a model's weights go: dtype, device, kernels, ranks and linear layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.checkpoints.storage import LinearFactory
from engine.kernels.contract import Kernels
from engine.kernels.products import Products, TorchProducts
from engine.lora.adapter import LoraAdapter
from engine.sharding.group import RankGroup


@dataclass(frozen=True, slots=True)
class Placement:
    """How to load a model. `group`: the tensor-parallel ranks; None: a single process.

    `storage` None: engine/checkpoints/linear.py makes the linear layers, for a CPU. `adapters`
    are put around the linear layers that they change. `kv_scales`: the checkpoint's scales of a
    KV cache in 8 bits are used, where they can be.
    """

    dtype: torch.dtype
    device: torch.device
    kernels: Kernels | None = None
    group: RankGroup | None = None
    storage: LinearFactory | None = None
    adapters: Sequence[LoraAdapter] = ()
    kv_scales: bool = False

    @property
    def products(self) -> Products:
        """What multiplies with the weights of adapters."""
        return TorchProducts() if self.storage is None else self.storage.products
