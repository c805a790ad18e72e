"""The tensors of a layer's experts and their router, in the ways checkpoints store them."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.checkpoints import mxfp4
from engine.checkpoints.storage import in_order, stack_linears
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.contract import CLAMPED
from engine.kernels.gating import squared_relu
from engine.kernels.products import TorchProducts
from engine.models.config import ModelConfig
from engine.models.dense_weights import (
    activation_kernel,
    gate_before,
    inner_size,
    read_dense_mlp,
    unit_of,
)
from engine.models.expert_config import ExpertConfig
from engine.models.experts import (
    Expert,
    LatentExperts,
    LoopedExperts,
    Router,
    SharedExpert,
    SparseMlp,
    StackedExperts,
    clamped_swiglu,
    gated,
)
from engine.models.experts import Experts as RoutedExperts
from engine.models.mlp import ACTIVATIONS, Activation
from engine.models.tensor_parallel import AbsentExpert


def read_sparse(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, at: str
) -> SparseMlp:
    """Read a layer's experts, under the family's or transformers' name for the block."""
    named, layer = f"{at}{experts.block}.", at
    at = named if f"{named}{experts.router}.weight" in loader else f"{at}mlp."
    around = at if experts.shared is None or experts.shared.within else layer
    return SparseMlp(
        read_router(loader, config, experts, at),
        read_experts(loader, config, experts, at),
        _shared(loader, config, experts, around),
    )


def read_experts(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, at: str
) -> RoutedExperts:
    """Read a layer's routed experts, and the products around them, if there are any."""
    routed = _gathered(loader, config, _experts(loader, config, experts, at))
    hidden, width, bias = config.hidden_size, experts.latent_width, config.mlp_bias
    if width is None:
        return routed
    return LatentExperts(
        loader.fuse(at, {"fc1_latent_proj": width}, hidden, bias=bias),
        routed,
        loader.fuse(at, {"fc2_latent_proj": hidden}, width, bias=bias),
    )


def _gathered(loader: WeightLoader, config: ModelConfig, each: list[Expert]) -> RoutedExperts:
    """The experts stacked if one launch can multiply all of them, else looped over.

    In a loop other ranks' experts are made of AbsentExpert.
    """
    assert config.experts is not None
    experts = config.experts
    count, ours = experts.routing.num_experts, _ours(loader, experts)
    unit, in_torch = expert_unit(config, experts), _unit_in_torch(config, experts)
    if loader.storage is None or not loader.storage.stacks_experts:
        wide, outputs = inner_size(config, experts.width), _outer(config, experts)
        absent = Expert(AbsentExpert(wide), AbsentExpert(outputs))
        all_of_them = [absent] * ours.start + each + [absent] * (count - ours.stop)
        return LoopedExperts(all_of_them, activation_kernel(loader, *unit) or in_torch)
    inward, outward = ([getattr(one, name) for one in each] for name in ("gate_up", "down"))
    gate_up, down, products = (
        stack_linears(inward),
        stack_linears(outward),
        loader.storage.products,
    )
    gating = gate_before(loader, down, *unit) or in_torch
    return StackedExperts(gate_up, down, gating, products, count, ours.start)


def _outer(config: ModelConfig, experts: ExpertConfig) -> int:
    """The numbers that an expert reads and writes."""
    return experts.latent_width or config.hidden_size


def expert_unit(
    config: ModelConfig, experts: ExpertConfig
) -> tuple[str, tuple[float, float] | None]:
    """As `unit_of`, for what is between an expert's products, and its clamp."""
    if (clamp := experts.clamp) is None:
        return unit_of(config), None
    return CLAMPED, (clamp.alpha, clamp.limit)


def _unit_in_torch(config: ModelConfig, experts: ExpertConfig) -> Activation:
    if config.squared_relu:
        return squared_relu
    if (clamp := experts.clamp) is None:
        return partial(gated, activate=ACTIVATIONS[config.activation])
    return partial(clamped_swiglu, alpha=clamp.alpha, limit=clamp.limit)


def _ours(loader: WeightLoader, experts: ExpertConfig) -> range:
    """The indices of this rank's experts."""
    count = experts.routing.num_experts
    return range(count) if loader.group is None else loader.group.shard.part(count)


def read_router(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, at: str
) -> Router:
    """Read the router, in float32 whatever the model's dtype."""
    name, count = f"{at}{experts.router}", experts.routing.num_experts
    exact = torch.float32
    return Router(
        experts.routing,
        loader.take(f"{name}.weight", count, config.hidden_size, dtype=exact),
        loader.take(f"{name}.bias", count, dtype=exact) if experts.router_bias else None,
        _correction(loader, experts, at),
        products=TorchProducts() if loader.storage is None else loader.storage.products,
    )


def _correction(loader: WeightLoader, experts: ExpertConfig, at: str) -> Tensor | None:
    """[experts] float32, under the family's name or below the router's, as in transformers."""
    if experts.correction is None:
        return None
    named = f"{at}{experts.correction}"
    below = f"{at}{experts.router}.{experts.correction}"
    name, count = below if below in loader else named, experts.routing.num_experts
    return loader.take(name, count, dtype=torch.float32)


def _shared(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, at: str
) -> SharedExpert | None:
    if (shared := experts.shared) is None:
        return None
    gate = None
    if shared.gate is not None:
        gate = loader.fuse(at, {shared.gate: 1}, config.hidden_size, bias=False)
    return SharedExpert(
        read_dense_mlp(loader, config, f"{at}{shared.name}.", shared.width), gate
    )


def _experts(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, at: str
) -> list[Expert]:
    """This rank's experts, in whichever way the checkpoint stores them."""
    if experts.stacked_across:
        return _stacked_across(loader, config, experts, f"{at}experts.")
    stacks = tuple(f"{at}{name}" for name in _stacks(config, experts))
    if experts.stacks or stacks[0] in loader:
        return _stacked(loader, config, experts, stacks)
    hidden, wide, (gate, up, down) = _outer(config, experts), experts.width, experts.parts
    inward = {up: wide} if config.squared_relu else {gate: wide, up: wide}
    return [
        Expert(
            *in_order(
                loader.fuse(f"{at}experts.{one}.", inward, hidden, bias=False),
                loader.fuse(f"{at}experts.{one}.", {down: hidden}, wide, bias=False),
            )
        )
        for one in _ours(loader, experts)
    ]


def _stacks(config: ModelConfig, experts: ExpertConfig) -> Sequence[str]:
    """The names of stacked tensors, within the experts' block."""
    first = "up_proj" if config.squared_relu else "gate_up_proj"
    return experts.stacks or (f"experts.{first}", "experts.down_proj")


def _stacked(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, names: Sequence[str]
) -> list[Expert]:
    """This rank's experts, from stacked tensors [experts, outputs, inputs], gates first."""
    count, wide, outer = len(_ours(loader, experts)), experts.width, _outer(config, experts)
    gates_and_ups = loader.stacked_linears(names[0], count, inner_size(config, wide), outer)
    downs = loader.stacked_linears(names[1], count, outer, wide)
    return [Expert(*pair) for pair in zip(gates_and_ups, downs, strict=True)]


def _stacked_across(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, at: str
) -> list[Expert]:
    """This rank's experts, from tensors in which gates and ups alternate, with biases."""
    count, wide, hidden = len(_ours(loader, experts)), experts.width, config.hidden_size
    apart = torch.arange(2 * wide).view(-1, 2).T.flatten()  # gates, then ups
    gate_up = _across(loader, f"{at}gate_up_proj", count, 2 * wide, hidden)
    down = _across(loader, f"{at}down_proj", count, hidden, wide)
    gate_up_bias = loader.whole(f"{at}gate_up_proj_bias", count, 2 * wide)[:, apart]
    down_bias = loader.whole(f"{at}down_proj_bias", count, hidden)
    return [
        Expert(
            loader.linear(loader.place(gate_up(one)[apart]), loader.place(gate_up_bias[one])),
            loader.linear(loader.place(down(one)), loader.place(down_bias[one])),
        )
        for one in range(count)
    ]


def _across(
    loader: WeightLoader, name: str, count: int, outputs: int, inputs: int
) -> Callable[[int], Tensor]:
    """A reader of one expert's [outputs, inputs] at a time: unpacks MXFP4, or transposes."""
    if f"{name}_blocks" not in loader:
        plain = loader.whole(name, count, inputs, outputs)
        return lambda one: plain[one].T
    groups = inputs // mxfp4.BLOCK
    blocks = loader.whole(f"{name}_blocks", count, outputs, groups, mxfp4.BLOCK // 2)
    scales = loader.whole(f"{name}_scales", count, outputs, groups)
    return lambda one: mxfp4.dequantise(blocks[one], scales[one], loader.dtype)
