"""Stacks adapters around the linear layers of a model while its weights are loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import UnusableAdapter
from engine.kernels.contract import Linear
from engine.kernels.lora import AdapterStack
from engine.kernels.products import Products, TorchProducts
from engine.lora.active import ActiveAdapters
from engine.lora.adapter import LoraAdapter, LoraFactors
from engine.lora.linear import LoraLinear

ALIGNED = 16  # ranks are padded to multiples of it, so that kernels load whole vectors
ROUTED = ".experts."  # layers that get some of a step's rows, in another order


@dataclass(slots=True)
class AdapterStacker:
    """Puts adapters around a model's linear layers while its weights are loaded.

    Each layer's factors are taken once, and none may be left over. Of several `ranks` this is
    one, and the adapters are its parts.
    """

    adapters: Sequence[LoraAdapter]
    active: ActiveAdapters
    products: Products
    dtype: torch.dtype
    device: torch.device
    ranks: int = 1
    _left: list[dict[str, LoraFactors]] = field(init=False)

    def __post_init__(self) -> None:
        """All factors are left to be taken."""
        self._left = [dict(one.factors) for one in self.adapters]

    def around(
        self,
        base: Linear,
        at: str,
        parts: Mapping[str, int],
        inputs: int,
        order: Tensor | None,
    ) -> Linear:
        """`base` with its adapters, or itself if no adapter changes it.

        See WeightLoader.fuse: `base` has the outputs of all `parts` under `at`, in `order`.
        Raises UnusableAdapter for factors of other sizes.
        """
        if ROUTED in at:
            return base
        found = [{part: left.pop(f"{at}{part}", None) for part in parts} for left in self._left]
        ranks = [
            max((one.rank for one in (parts_of[part] for parts_of in found) if one), default=0)
            for part in parts
        ]
        if not any(ranks):
            return base
        rank = -(-sum(ranks) // ALIGNED) * ALIGNED
        downs = torch.zeros(len(found), rank, inputs)
        ups = torch.zeros(len(found), sum(parts.values()), rank)
        for index, factors in enumerate(found):
            self._check(self.adapters[index], at, parts, inputs, factors)
            _fill(downs[index], ups[index], parts, ranks, factors)
        if order is not None:
            ups = ups[:, order.cpu()]
        stack = AdapterStack(self._placed(downs), self._placed(ups))
        return LoraLinear(base, stack, self.products, self.active)

    def check_all_taken(self) -> None:
        """Raises UnusableAdapter if factors are left: of layers that adapters cannot change
        here, or of another model.
        """
        for adapter, left in zip(self.adapters, self._left, strict=True):
            if left:
                raise UnusableAdapter(
                    f"adapter {adapter.name}: {len(left)} layers are not of this model, or "
                    f"cannot have adapters here, such as {min(left)}"
                )

    def _placed(self, factors: Tensor) -> Tensor:
        """Plain torch multiplies in float32, and would convert narrower numbers each time."""
        dtype = torch.float32 if isinstance(self.products, TorchProducts) else self.dtype
        return factors.to(self.device, dtype)

    def _check(
        self,
        adapter: LoraAdapter,
        at: str,
        parts: Mapping[str, int],
        inputs: int,
        factors: Mapping[str, LoraFactors | None],
    ) -> None:
        for part, outputs in parts.items():
            if (one := factors[part]) is None:
                continue
            sizes = one.down.shape[1], len(one.up)
            if sizes != (inputs, outputs):
                each = f", on each of {self.ranks} ranks" if self.ranks > 1 else ""
                raise UnusableAdapter(
                    f"adapter {adapter.name}: {at}{part} has {sizes[0]} inputs and {sizes[1]} "
                    f"outputs in the adapter, {inputs} and {outputs} in the model{each}"
                )


def _fill(
    down: Tensor,
    up: Tensor,
    parts: Mapping[str, int],
    ranks: Sequence[int],
    factors: Mapping[str, LoraFactors | None],
) -> None:
    """Write one adapter's As below each other, and its Bs as blocks along the diagonal."""
    row = first = 0
    for (part, outputs), rank in zip(parts.items(), ranks, strict=True):
        if (one := factors[part]) is not None:
            down[row : row + one.rank] = one.down
            up[first : first + outputs, row : row + one.rank] = one.up.float() * one.scale
        row, first = row + rank, first + outputs
