"""How a model's weights are kept: whole, or rounded to 8 or 4 bits while they are loaded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.checkpoints.linear import PlainLinear
from engine.checkpoints.packing import Packing
from engine.errors import KernelsUnavailable
from engine.kernels.contract import (
    DualOutputNorms,
    Linear,
    QuantizedOutputKernels,
    QuantizingKernels,
)
from engine.kernels.products import Products, TorchProducts
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
ROUNDED_AT_ONCE = 1 << 26  # numbers
FP8_SINCE = (8, 9)  # compute capability
ROUNDINGS: Mapping[str, Callable[[Tensor], Weight]] = {"fp8": fp8_weight, "int4": int4_weight}


@dataclass(frozen=True, slots=True, eq=False)
class StoredLinear:
    """y = x W^T + b, of a weight in some format."""

    weight: Weight  # of one expert
    bias: Tensor | None  # [1, outputs]
    products: Products

    def __call__(self, inputs: Rows) -> Tensor:
        """See Linear in engine/kernels/contract.py."""
        return self.products.multiply(inputs, self.weight, self.bias)


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The same product of several experts, in one piece of memory."""

    weight: Weight
    bias: Tensor | None  # [experts, outputs]


@dataclass(slots=True)
class Storage:
    """Makes the products of a model; told what was lost by rounding, if there was any.

    `rounding` is one of ROUNDINGS, None keeps weights as they are. `kernels`, where there are
    any, round rows on the way to a product that would else do so itself.
    """

    products: Products
    rounding: str | None = None
    kernels: QuantizingKernels | None = None
    errors: list[Tensor] = field(default_factory=list)

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """`weight` [outputs, inputs], which is not kept where it is rounded."""
        if self.rounding is None:
            return PlainLinear(weight, bias)
        made = self.packed(_rounded(weight, ROUNDINGS[self.rounding]), bias)
        self.errors.append(_lost(made, weight, bias))
        return made

    def head(self, weight: Tensor) -> Linear:
        """The last product: whole where others have four bits, whose errors it would show."""
        return PlainLinear(weight) if self.rounding == "int4" else self.linear(weight)

    def packed(self, weight: Weight, bias: Tensor | None) -> StoredLinear:
        """Of a weight that the checkpoint stores like that."""
        return StoredLinear(weight, None if bias is None else bias.unsqueeze(0), self.products)

    def quantized_kernels_for(
        self, product: Linear | Stack | None
    ) -> QuantizedOutputKernels | None:
        """Norms and gates for what only `product` is given; None: it wants its rows whole."""
        weight = _eight_bits(product)
        if self.kernels is None or weight is None:
            return None
        return self.kernels.quantized(weight.row_group)

    def dual_norms_for(self, product: Linear | Stack | None) -> DualOutputNorms | None:
        """Norms for what `product` is given, and others whole; None: it wants that as well."""
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


def _eight_bits(product: Linear | Stack | None) -> Fp8Weight | None:
    weight = product.weight if isinstance(product, StoredLinear | Stack) else None
    return weight if isinstance(weight, Fp8Weight) else None


def in_order(gate_up: Linear, down: Linear) -> tuple[Linear, Linear]:
    """The same two, with gates and ups in the order in which `down` has its inputs.

    So none is to be looked up on the way. Between the two every number is made for itself.
    """
    if not isinstance(gate_up, StoredLinear) or not isinstance(down, StoredLinear):
        return gate_up, down
    weight = down.weight
    if not isinstance(weight, Int4Weight) or weight.order is None:
        return gate_up, down
    if weight.places > weight.inputs:  # a rank's, with places that have no input
        return gate_up, down
    (order,) = weight.order.long()
    both = torch.cat((order, order + len(order)))
    bias = None if gate_up.bias is None else gate_up.bias[:, both]
    first = replace(gate_up, weight=reordered(gate_up.weight, both), bias=bias)
    return first, replace(down, weight=replace(weight, order=None))


def open_storage(
    rounding: str | None,
    packing: Packing | None,
    cpu_kernels: str,
    device: torch.device,
    products: Products | None = None,
    kernels: QuantizingKernels | None = None,
) -> Storage | None:
    """For what `--quantization` or a checkpoint asks; raises KernelsUnavailable.

    `products` and `kernels` are the device's own. None: on a CPU, which keeps weights as its
    own kernels want them.
    """
    wanted = None if rounding is None else f"--quantization {rounding}"
    if packing is not None:
        wanted = f"config.json: a checkpoint quantized in {packing.layout}"
    eight = rounding == "fp8" or (packing is not None and packing.group is None)
    if products is not None:
        if (
            device.type == "cuda"
            and eight
            and torch.cuda.get_device_capability(device) < FP8_SINCE
        ):
            name = torch.cuda.get_device_name(device)
            raise KernelsUnavailable(f"{wanted}: {name} cannot multiply in 8 bits")
        return Storage(products, rounding, kernels)
    if wanted is None:
        return None
    if cpu_kernels != "torch":
        raise KernelsUnavailable(
            f"{wanted} is for --device cuda; a CPU has --quantization int8, of whole weights, "
            "and --cpu-kernels torch runs this one in plain torch, slowly"
        )
    return Storage(TorchProducts(), rounding)


def stacked(linears: Sequence[Linear]) -> Stack:
    """Of what Storage made, all alike; each is let go of when the caller does so."""
    pairs = [_weight(one) for one in linears]
    biases = [bias for _, bias in pairs if bias is not None]
    assert len(biases) in (0, len(pairs)), "all have a bias, or none"
    weight = stack_experts([weight for weight, _ in pairs])
    return Stack(weight, torch.cat(biases) if biases else None)


def _weight(one: Linear) -> tuple[Weight, Tensor | None]:
    if isinstance(one, StoredLinear):
        return one.weight, one.bias
    assert isinstance(one, PlainLinear), "made by Storage"
    return PlainWeight(one.weight[None]), None if one.bias is None else one.bias[None]


def _rounded(weight: Tensor, how: Callable[[Tensor], Weight]) -> Weight:
    """Some outputs at a time: it takes several times their memory."""
    outputs = max(1, ROUNDED_AT_ONCE // weight.shape[1])
    return concat_outputs([how(part.unsqueeze(0)) for part in weight.split(outputs)])


def _lost(made: StoredLinear, weight: Tensor, bias: Tensor | None) -> Tensor:
    """How far it is from what it was, a number that may still be under way on the device."""
    generator = torch.Generator().manual_seed(PROBE_SEED)
    probe = torch.randn(PROBE_ROWS, weight.shape[1], generator=generator).to(weight)
    exact = F.linear(probe, weight, bias).float()
    lost: Tensor = (made(probe).float() - exact).norm() / exact.norm()
    return lost
