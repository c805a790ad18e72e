"""Multiplies products of a checkpoint by constants, while they are read.

What a model, or a scale of its KV, asks for at a product's inputs or outputs is in its weight
then, and costs nothing when it runs. An unquantized weight is multiplied in float32 and rounded
once, to the model's dtype; of a quantized one only the scales change, and stay in float32. An
adapter's factors are multiplied alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from engine.checkpoints.store import Tensors
from engine.checkpoints.weight_loader import WeightLoader
from engine.lora.adapter import LoraAdapter, LoraFactors

Number: TypeAlias = float | Tensor
"""One for all outputs, or one for each: [outputs] float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    """What a product's weight and bias are multiplied by.

    They differ if it is the product's inputs that were to be multiplied, or if its bias is
    added to something else.
    """

    weight: Number
    bias: Number


Factors: TypeAlias = Mapping[str, Factor]
"""By the products' names; other products stay as they are."""


@dataclass(frozen=True, slots=True)
class ScaledTensor:
    """A file whose tensor [outputs, ..] is multiplied, in float32."""

    file: Tensors
    number: Number

    def get_tensor(self, name: str) -> Tensor:
        """The product."""
        tensor = self.file.get_tensor(name).to(torch.float32)
        if not isinstance(self.number, Tensor):
            return tensor * self.number
        return tensor * self.number.to(tensor.device).view(-1, *[1] * (tensor.dim() - 1))


def multiply(loader: WeightLoader, factors: Factors) -> None:
    """Multiply products that are not read yet."""
    for product, factor in factors.items():
        if loader.packs(product):
            before = loader.factors.get(product, 1.0)
            loader.factors[product] = before * factor.weight
        else:
            _scale(loader, f"{product}.weight", factor.weight)
        _scale(loader, f"{product}.bias", factor.bias)


def _scale(loader: WeightLoader, name: str, number: Number) -> None:
    if name in loader and (isinstance(number, Tensor) or number != 1):
        stored = loader.stored(name)
        loader.files[stored] = ScaledTensor(loader.files[stored], number)


def scaled_adapter(adapter: LoraAdapter, factors: Factors) -> LoraAdapter:
    """The adapter, of a model whose products were multiplied by `factors`."""
    scaled = {
        name: _scaled_factors(one, factors[name].weight) if name in factors else one
        for name, one in adapter.factors.items()
    }
    return replace(adapter, factors=scaled)


def _scaled_factors(one: LoraFactors, number: Number) -> LoraFactors:
    if not isinstance(number, Tensor):
        return replace(one, scale=one.scale * number)
    return replace(one, up=one.up.float() * number[:, None])
