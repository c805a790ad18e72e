"""The tensors of a layer's MLP: dense, of experts, or of both side by side."""

from dataclasses import replace

import torch

from engine.checkpoints.storage import ExpertStack
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.contract import Linear
from engine.kernels.fusion import Gate as FusedGate
from engine.models.config import ModelConfig
from engine.models.dense_weights import read_dense_mlp, unit_of
from engine.models.expert_config import ExpertConfig
from engine.models.expert_weights import expert_unit, read_experts, read_router, read_sparse
from engine.models.experts import Router, StackedExperts
from engine.models.experts_beside import DenseAndExperts, RoutedStream
from engine.models.layer import Mlp
from engine.models.mlp import GatedMlp, UngatedMlp
from engine.models.norm import LayerNorm, Norm, norm_before
from engine.models.norm_weights import read_norm, unweighted_norm


def read_mlp(loader: WeightLoader, config: ModelConfig, index: int) -> Mlp:
    """Read the MLP of layer `index`."""
    at, plan, experts = f"model.layers.{index}.", config.layers[index], config.experts
    if experts is not None and plan.sparse and not experts.beside:
        return read_sparse(loader, config, experts, at)
    block, wide = f"{at}{config.mlp_names.block}.", config.intermediate_size
    dense = read_dense_mlp(loader, config, block, 2 * wide if plan.wide_mlp else wide)
    if experts is None or not plan.sparse:
        return dense
    return _beside(loader, config, experts, at, dense)


def fused_gates(config: ModelConfig) -> tuple[FusedGate, FusedGate]:
    """What is between a dense MLP's products, and between those of routed experts."""
    dense, experts = FusedGate(unit_of(config)), config.experts
    return dense, dense if experts is None else FusedGate(*expert_unit(config, experts))


def _beside(
    loader: WeightLoader,
    config: ModelConfig,
    experts: ExpertConfig,
    at: str,
    dense: GatedMlp | UngatedMlp,
) -> DenseAndExperts:
    """Read a layer's experts, which are beside its `dense` MLP, and the norms of both."""
    hidden, names = config.hidden_size, config.norms
    routed = read_experts(loader, config, experts, at)
    stack = routed.gate_up if isinstance(routed, StackedExperts) else None

    def norm(name: str) -> Norm:
        return read_norm(loader, config, f"{at}{name}", hidden)

    def before(product: Linear | ExpertStack | None, name: str) -> LayerNorm:
        return norm_before(loader.quantized_kernels_for(product), norm(name))

    first = dense.up if isinstance(dense, UngatedMlp) else dense.gate_up
    return DenseAndExperts(
        dense,
        before(first, f"{names.mlp}"),
        norm(f"{names.mlp_output}_1"),
        RoutedStream(
            _scaled_router(loader, config, experts, at),
            unweighted_norm(loader, config, hidden),
            routed,
            before(stack, f"{names.mlp}_2"),
        ),
        norm(f"{names.mlp_output}_2"),
    )


def _scaled_router(
    loader: WeightLoader, config: ModelConfig, experts: ExpertConfig, at: str
) -> Router:
    """Read a router whose inputs, and weights of experts that it chose, have factors."""
    router, hidden = read_router(loader, config, experts, at), config.hidden_size
    scale = loader.take(f"{at}router.scale", hidden, dtype=torch.float32) * hidden**-0.5
    count = experts.routing.num_experts
    factors = loader.take(f"{at}router.per_expert_scale", count, dtype=torch.float32)
    return replace(router, weight=router.weight * scale, factors=factors)
