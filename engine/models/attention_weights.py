"""The tensors of one layer's attention, fused, and ordered as rotation wants them."""

from dataclasses import replace

import torch
from torch import Tensor

from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.gating import sigmoid_gated
from engine.kernels.style import AttentionStyle
from engine.models.config import ModelConfig
from engine.models.grouped_attention import Gating, GroupedAttention
from engine.models.latent_weights import read_latent_attention
from engine.models.layer import Attention
from engine.models.norm import Norm
from engine.models.norm_weights import read_norm, unweighted_norm
from engine.models.rope import head_order
from engine.models.tensor_parallel import ParallelNorm


def read_attention(
    loader: WeightLoader, config: ModelConfig, index: int, at: str, inputs: int | None = None
) -> Attention:
    """Read the attention of layer `index`, whose tensors are under `at`.

    It reads rows of `inputs` numbers; None: hidden states.
    """
    if config.latent is not None:
        return read_latent_attention(loader, config, config.latent, index, at)
    plan, hidden, heads = config.layers[index], config.hidden_size, config.num_heads
    width, gated = config.kv_heads_of(plan).head_dim, config.gated_attention
    order = head_order(plan.rope, width) if plan.rope else None
    query_norm, key_norm = _head_norms(loader, config, index, at, order)
    scale = config.attention_scale * plan.key_scale
    sinks = loader.take(f"{at}sinks", heads) if config.sinks else None
    parts, rows = _parts(config, index), _order_of_rows(config, index, order)
    back = {config.attention_names.output: hidden}
    return GroupedAttention(
        config.kv_layer_of(index),
        heads,
        config.kv_heads_of(plan).num_kv_heads,
        loader.fuse(at, parts, inputs or hidden, bias=config.qkv_bias, order=rows),
        loader.fuse(at, back, heads * width, bias=config.output_bias),
        AttentionStyle(scale, plan.window, config.attention_softcap, sinks),
        rope=config.ropes.index(plan.rope) if plan.rope else None,
        query_norm=query_norm,
        key_norm=key_norm,
        value_norm=_value_norm(loader, config, index),
        keys_are_values=plan.keys_are_values,
        shares_kv=plan.shares_kv,
        gated=_gating(loader) if gated else None,
    )


def _parts(config: ModelConfig, index: int) -> dict[str, int]:
    """The products that layer `index` begins with, and their outputs."""
    plan = config.layers[index]
    sizes = config.kv_heads_of(plan)
    queries, keys = config.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    if config.fused_qkv:
        return {"qkv_proj": queries + 2 * keys}
    parts = {"q_proj": queries * (1 + config.gated_attention)}
    if plan.shares_kv:
        return parts
    return {**parts, "k_proj": keys, **({} if plan.keys_are_values else {"v_proj": keys})}


def _order_of_rows(config: ModelConfig, index: int, order: Tensor | None) -> Tensor | None:
    """Row indices of what `_parts` names, side by side; None: as they are."""
    sizes = config.kv_heads_of(config.layers[index])
    heads, kv_heads = config.num_heads, sizes.num_kv_heads
    if config.gated_attention:
        return _gated_rows(order, heads, kv_heads, sizes.head_dim)
    return None if order is None else _rows(order, heads, kv_heads)


def _gating(loader: WeightLoader) -> Gating:
    return sigmoid_gated if loader.kernels is None else loader.kernels.sigmoid_gated


def _rows(order: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Row indices of fused queries, keys and values: the first two in a head's `order`."""
    dim, turning = len(order), heads + kv_heads
    first = torch.arange(turning)[:, None] * dim
    values = torch.arange(turning * dim, (turning + kv_heads) * dim)
    return torch.cat(((first + order).flatten(), values))


def _gated_rows(order: Tensor | None, heads: int, kv_heads: int, dim: int) -> Tensor:
    """Likewise, of queries that each have a gate behind them; the gates come last."""
    unchanged = torch.arange(dim)
    order = unchanged if order is None else order
    both = torch.arange(heads)[:, None] * 2 * dim
    behind = _rows(order, 0, kv_heads) + heads * 2 * dim
    return torch.cat(((both + order).flatten(), behind, (both + dim + unchanged).flatten()))


def _head_norms(
    loader: WeightLoader, config: ModelConfig, index: int, at: str, order: Tensor | None
) -> tuple[Norm | None, Norm | None]:
    """The norms of queries and of keys; None: there are none, or the layer has no keys."""
    if config.qk_norm is None:
        return None, None
    plan, names, key = config.layers[index], config.attention_names, None
    sizes = config.kv_heads_of(plan)
    query = f"{at}{names.query_norm}", config.num_heads, sizes.head_dim
    if plan.has_kv:
        told = f"{at}{names.key_norm}", sizes.num_kv_heads, sizes.head_dim
        key = _head_norm(loader, config, *told, order)
        if plan.key_scale != 1:
            key = replace(key, weight=key.weight / plan.key_scale)
    return _head_norm(loader, config, *query, order), key


def _value_norm(loader: WeightLoader, config: ModelConfig, index: int) -> Norm | None:
    plan = config.layers[index]
    if not config.value_norm or plan.shares_kv:
        return None
    norm = unweighted_norm(loader, config, config.kv_heads_of(plan).head_dim)
    return replace(norm, weight=norm.weight / plan.value_scale)


def _head_norm(
    loader: WeightLoader,
    config: ModelConfig,
    name: str,
    heads: int,
    width: int,
    order: Tensor | None,
) -> Norm:
    """Over one head or over all of them, each in its `order`."""
    count = heads if config.qk_norm == "all" else 1
    norm = read_norm(loader, config, name, count * width)
    if order is not None:
        weight = norm.weight.view(count, -1)[:, order.to(loader.device)].flatten()
        norm = replace(norm, weight=weight)
    if loader.group is None or config.qk_norm != "all":
        return norm
    return ParallelNorm(norm.weight, norm.eps, group=loader.group)
