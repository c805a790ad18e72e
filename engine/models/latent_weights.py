"""The tensors of attention over latents, fused, and ordered as rotation wants them."""

import torch
from torch import Tensor

from engine.checkpoints.linear import Linear
from engine.checkpoints.weight_loader import WeightLoader
from engine.kernels.style import AttentionStyle
from engine.models.config import ModelConfig
from engine.models.expert_config import LatentConfig
from engine.models.latent_attention import LatentAttention, LatentQuery
from engine.models.latent_heads import LatentHeads
from engine.models.norm import Norm, norm_before
from engine.models.rope import head_order

THROUGH_LATENT = "q_a_proj"
NORM_EPS = 1e-6  # of these norms alone, whatever the config says of the others


def read_latent_attention(
    loader: WeightLoader, config: ModelConfig, latent: LatentConfig, index: int, at: str
) -> LatentAttention:
    """Read the attention of layer `index`, whose tensors are under `at`."""
    hidden, heads, rank = config.hidden_size, config.num_heads, latent.rank
    plan, plain, value = config.layers[index], latent.plain_dim, latent.value_dim
    assert plan.rope is not None
    order = head_order(plan.rope, config.head_dim)
    turned = torch.arange(config.head_dim) if order is None else order
    query_rows = _rows(torch.arange(heads) * (plain + config.head_dim), plain, turned)
    query, asked = None, ("q_proj", query_rows)
    if latent.query_rank is not None:
        query = _query(loader, at, latent.query_rank, query_rows)
        asked = THROUGH_LATENT, torch.arange(latent.query_rank)
    row = _rows(torch.zeros(1, dtype=torch.int64), rank, turned)
    up = loader.take(f"{at}kv_b_proj.weight", heads * (plain + value), rank)
    keys, values = up.view(heads, plain + value, rank).split((plain, value), dim=1)
    return LatentAttention(
        index,
        _inward(loader, config, at, asked, row),
        query,
        Norm(loader.take(f"{at}kv_a_layernorm.weight", rank), NORM_EPS, loader.kernels),
        LatentHeads(keys.contiguous(), values.transpose(1, 2).contiguous(), config.head_dim),
        loader.fuse(at, {"o_proj": hidden}, heads * value, bias=config.output_bias),
        AttentionStyle(config.attention_scale),
        config.ropes.index(plan.rope),
    )


def _rows(firsts: Tensor, plain: int, turned: Tensor) -> Tensor:
    """Row indices of all heads, each starting at one of `firsts`: `plain` rows unchanged, then
    the rotated ones in their order.
    """
    return (firsts[:, None] + torch.cat((torch.arange(plain), plain + turned))).flatten()


def _query(loader: WeightLoader, at: str, rank: int, rows: Tensor) -> LatentQuery:
    norm = Norm(loader.take(f"{at}q_a_layernorm.weight", rank), NORM_EPS, loader.kernels)
    parts = {"q_b_proj": len(rows)}
    up = loader.fuse(at, parts, rank, bias=False, order=rows)
    return LatentQuery(norm_before(loader.quantized_kernels_for(up), norm), up)


def _inward(
    loader: WeightLoader, config: ModelConfig, at: str, asked: tuple[str, Tensor], row: Tensor
) -> Linear:
    """One product for the query, or its latent, and the row to store.

    A query that is not made through a latent has no bias.
    """
    name, rows = asked
    kept, places = f"{at}kv_a_proj_with_mqa", row.to(loader.device)
    weights = (
        loader.take(f"{at}{name}.weight", len(rows), config.hidden_size)[
            rows.to(loader.device)
        ],
        loader.take(f"{kept}.weight", len(row), config.hidden_size)[places],
    )
    if not config.qkv_bias:
        return loader.linear(torch.cat(weights))
    first = torch.zeros(len(rows), dtype=loader.dtype, device=loader.device)
    if name == THROUGH_LATENT:
        first = loader.take(f"{at}{name}.bias", len(rows))
    return loader.linear(
        torch.cat(weights), torch.cat((first, loader.take(f"{kept}.bias", len(row))[places]))
    )
