"""The tensors of an MLP without experts, and the kernels between its products."""

from functools import partial

from engine.checkpoints.storage import ExpertStack, in_order
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.contract import SQUARED_RELU, Linear
from engine.kernels.gating import squared_relu
from engine.models.config import ModelConfig
from engine.models.mlp import (
    ACTIVATIONS,
    Activation,
    Gate,
    GatedMlp,
    UngatedMlp,
)


def read_dense_mlp(
    loader: WeightLoader, config: ModelConfig, at: str, wide: int
) -> GatedMlp | UngatedMlp:
    """Read an MLP without experts from the tensors under `at`; `wide` is its inner size."""
    names, hidden = config.mlp_names, config.hidden_size
    parts = dict.fromkeys(names.inward, inner_size(config, wide) // len(names.inward))
    gate_up = loader.fuse(at, parts, hidden, bias=config.mlp_bias)
    down = loader.fuse(at, {names.outward: hidden}, wide, bias=config.mlp_bias)
    gate_up, down = in_order(gate_up, down)
    gate = gate_before(loader, down, unit_of(config))
    if config.squared_relu:
        return UngatedMlp(gate_up, down, gate or squared_relu)
    return GatedMlp(gate_up, down, ACTIVATIONS[config.activation], gate)


def inner_size(config: ModelConfig, wide: int) -> int:
    """The outputs of a first product: gates and ups, or ups alone."""
    return wide if config.squared_relu else 2 * wide


def unit_of(config: ModelConfig) -> str:
    """The kernels' name for what is between the products of an MLP without experts."""
    return SQUARED_RELU if config.squared_relu else config.activation


def activation_kernel(
    loader: WeightLoader, gate: str, clamp: tuple[float, float] | None = None
) -> Activation | None:
    """The kernel for gate and activation together, if there is one."""
    if loader.kernels is None:
        return None
    if gate == SQUARED_RELU:
        return loader.kernels.squared_relu
    if gate not in loader.kernels.gates:
        return None
    return partial(loader.kernels.gated, gate=gate, clamp=clamp)


def gate_before(
    loader: WeightLoader,
    down: Linear | ExpertStack,
    gate: str,
    clamp: tuple[float, float] | None = None,
) -> Gate | None:
    """As `activation_kernel`, with output rows in the form that `down` takes."""
    whole, kernels = activation_kernel(loader, gate, clamp), loader.quantized_kernels_for(down)
    if whole is None or kernels is None:
        return whole
    if gate == SQUARED_RELU:
        return kernels.squared_relu
    return partial(kernels.gated, gate=gate, clamp=clamp)
