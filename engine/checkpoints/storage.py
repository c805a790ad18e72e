"""Linear layers over weights that are unquantized, or quantized to 8 or 4 bits on loading."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.checkpoints.linear import PlainLinear
from engine.checkpoints.packing import Packing
from engine.errors import KernelsUnavailable, UnusableCheckpoint
from engine.kernels.contract import (
    DualOutputNorms,
    Linear,
    QuantizedOutputKernels,
    QuantizingKernels,
)
from engine.kernels.products import Products
from engine.kernels.rows import Rows
from engine.kernels.weights import (
    Fp8Weight,
    Int4Weight,
    PlainWeight,
    Weight,
    concat_outputs,
    fp8_weight,
    int4_weight,
    reordered,
    stack_experts,
)

PROBE_ROWS, PROBE_SEED = 4, 0
ROUNDED_AT_ONCE = 1 << 26  # numbers that are quantized at once
FP8_SINCE = (8, 9)  # compute capability
ROUNDINGS: Mapping[str, Callable[[Tensor], Weight]] = {"fp8": fp8_weight, "int4": int4_weight}


@dataclass(frozen=True, slots=True, eq=False)
class StoredLinear:
    """y = x W^T + b, with a weight in any format of engine/kernels/weights.py."""

    weight: Weight  # of one expert
    bias: Tensor | None  # [1, outputs]
    products: Products

    def __call__(self, inputs: Rows) -> Tensor:
        """See Linear in engine/kernels/contract.py."""
        return self.products.multiply(inputs, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class ExpertStack:
    """The weights of one linear layer of several experts, in one tensor."""

    weight: Weight
    bias: Tensor | None  # [experts, outputs]


@dataclass(slots=True)
class LinearFactory:
    """Makes a model's linear layers, and quantizes their weights if configured.

    `rounding` is one of ROUNDINGS; None keeps weights as they are. `kernels` are norms and
    gates with quantized output. `errors` has each layer's relative quantization error.
    """

    products: Products
    rounding: str | None = None
    kernels: QuantizingKernels | None = None
    errors: list[Tensor] = field(default_factory=list)

    @property
    def stacks_experts(self) -> bool:
        """Whether one launch multiplies all experts of a layer: see `stack_linears`."""
        return True

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A layer with `weight` [outputs, inputs], which is not kept if it is quantized."""
        if self.rounding is None:
            return self.unquantized(weight, bias)
        made = self.packed(_rounded(weight, ROUNDINGS[self.rounding]), bias)
        self.errors.append(_lost(made, weight, bias))
        return made

    def head(self, weight: Tensor) -> Linear:
        """The LM head: unquantized in int4 models, where its error would matter most."""
        return self.unquantized(weight) if self.rounding == "int4" else self.linear(weight)

    def packed(self, weight: Weight, bias: Tensor | None) -> Linear:
        """A layer whose weight is quantized, by the checkpoint or here."""
        return StoredLinear(weight, None if bias is None else bias.unsqueeze(0), self.products)

    def unquantized(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """A layer whose weight is not."""
        return PlainLinear(weight, bias)

    def quantized_kernels_for(
        self, product: Linear | ExpertStack | None
    ) -> QuantizedOutputKernels | None:
        """Norms and gates whose output only `product` reads; None: it reads whole rows."""
        weight = _eight_bits(product)
        if self.kernels is None or weight is None:
            return None
        return self.kernels.quantized(weight.row_group)

    def dual_norms_for(self, product: Linear | ExpertStack | None) -> DualOutputNorms | None:
        """Norms whose output `product` reads quantized and others whole; None: all whole."""
        weight = _eight_bits(product)
        if self.kernels is None or weight is None:
            return None
        return self.kernels.dual(weight.row_group)

    def summary(self) -> str:
        """One line for the log."""
        errors = torch.stack(self.errors)
        return (
            f"{len(errors)} products have weights in {self.rounding}; on a random probe they "
            f"differ from what they were by {errors.mean():.2%} in the mean and "
            f"{errors.max():.2%} at most, in norm"
        )


def _eight_bits(product: Linear | ExpertStack | None) -> Fp8Weight | None:
    weight = product.weight if isinstance(product, StoredLinear | ExpertStack) else None
    return weight if isinstance(weight, Fp8Weight) else None


def in_order(gate_up: Linear, down: Linear) -> tuple[Linear, Linear]:
    """Permute the outputs of `gate_up` to the order of `down`'s inputs (GPTQ's act-order).

    So `down` need not gather its inputs. This is allowed as the gate between is elementwise, or
    the activation, if there are no gates.
    """
    if not isinstance(gate_up, StoredLinear) or not isinstance(down, StoredLinear):
        return gate_up, down
    weight = down.weight
    if not isinstance(weight, Int4Weight) or weight.order is None:
        return gate_up, down
    if weight.places > weight.inputs:  # a rank's part, with places without inputs
        return gate_up, down
    (order,) = weight.order.long()
    halves = range(0, gate_up.weight.shape[1], len(order))
    every = torch.cat([order + first for first in halves])
    bias = None if gate_up.bias is None else gate_up.bias[:, every]
    first = replace(gate_up, weight=reordered(gate_up.weight, every), bias=bias)
    return first, replace(down, weight=replace(weight, order=None))


def device_storage(
    rounding: str | None,
    packing: Packing | None,
    device: torch.device,
    products: Products,
    kernels: QuantizingKernels | None,
) -> LinearFactory:
    """The factory for a device with `products` and `kernels` of its own.

    `rounding` is that of `--quantization`, `packing` the checkpoint's. Raises
    KernelsUnavailable if the device cannot multiply such weights.
    """
    eight = rounding == "fp8" or (packing is not None and packing.group is None)
    on_gpu = device.type == "cuda"
    if on_gpu and eight and torch.cuda.get_device_capability(device) < FP8_SINCE:
        asked = f"--quantization {rounding}"
        if packing is not None:
            asked = f"config.json: a checkpoint quantized in {packing.layout}"
        name = torch.cuda.get_device_name(device)
        raise KernelsUnavailable(f"{asked}: {name} cannot multiply in 8 bits")
    return LinearFactory(products, rounding, kernels)


def stack_linears(linears: Sequence[Linear]) -> ExpertStack:
    """Stack experts' layers of one LinearFactory; this copies.

    Raises UnusableCheckpoint if not all of them are of one format.
    """
    pairs = [_weight(one) for one in linears]
    if len({type(weight) for weight, _ in pairs}) > 1:
        raise UnusableCheckpoint("some experts of a layer are quantized, and others are not")
    biases = [bias for _, bias in pairs if bias is not None]
    assert len(biases) in (0, len(pairs)), "all have a bias, or none"
    weight = stack_experts([weight for weight, _ in pairs])
    return ExpertStack(weight, torch.cat(biases) if biases else None)


def _weight(one: Linear) -> tuple[Weight, Tensor | None]:
    if isinstance(one, StoredLinear):
        return one.weight, one.bias
    assert isinstance(one, PlainLinear), "made by a LinearFactory"
    return PlainWeight(one.weight[None]), None if one.bias is None else one.bias[None]


def _rounded(weight: Tensor, how: Callable[[Tensor], Weight]) -> Weight:
    """Quantize some outputs at a time, because it takes several times their memory."""
    outputs = max(1, ROUNDED_AT_ONCE // weight.shape[1])
    return concat_outputs([how(part.unsqueeze(0)) for part in weight.split(outputs)])


def _lost(made: Linear, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The relative error of quantization, a scalar that the device may still be computing."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    probe = torch.randn(PROBE_ROWS, weight.shape[1], generator=generator).to(weight)
    exact = F.linear(probe, weight, bias).float()
    lost: Tensor = (made(probe).float() - exact).norm() / exact.norm()
    return lost
