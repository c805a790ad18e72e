"""Builds a Decoder from a checkpoint: which tensors make which part, given the config."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.dummy import ShapeRecorder, dummy_store
from engine.checkpoints.placement import Placement
from engine.checkpoints.store import TensorStore, open_store
from engine.checkpoints.text_names import text_name
from engine.checkpoints.weight_loader import Parts, WeightLoader, open_weights
from engine.errors import UnusableCheckpoint
from engine.kernels.contract import DualOutputNorms, Linear, QuantizedOutputKernels
from engine.kernels.style import AttentionStyle
from engine.lora.active import ActiveAdapters
from engine.lora.stacking import AdapterStacker
from engine.models.config import ModelConfig
from engine.models.decoder import (
    Attention,
    Decoder,
    FewRowsAttention,
    FewRowsMlp,
    Layer,
    Mlp,
)
from engine.models.experts import SparseMlp, StackedExperts
from engine.models.family import TEXT, classifies
from engine.models.few_row_experts import few_rows_mlp
from engine.models.few_rows import FusedProducts, few_rows_attention
from engine.models.grouped_attention import GroupedAttention
from engine.models.latent_attention import LatentAttention
from engine.models.latent_weights import read_latent_attention
from engine.models.mlp import GatedMlp
from engine.models.mlp_weights import fused_gates, read_mlp
from engine.models.norm import LayerNorm, Norm, norm_before
from engine.models.rope import head_order, rope_table
from engine.models.shards import shard_adapter, shard_config, shard_tensors
from engine.models.tensor_parallel import (
    ParallelAttention,
    ParallelMlp,
    ParallelNorm,
    VocabParallelHead,
)

CLASSES, HEAD = "score.weight", "lm_head.weight"


def load_decoder(
    checkpoint: Checkpoint,
    config: ModelConfig,
    max_len: int,
    place: Placement,
) -> Decoder:
    """Read all weights, showing a progress bar; `max_len` positions get rotary angles.

    Each rank reads its own part.
    """
    store = store_of(checkpoint, config, place.dtype, place.device)
    parts: Parts = dict
    adapters = list(place.adapters)
    if TEXT in checkpoint.config:
        adapters = [one.renamed(text_name) for one in adapters]
    group, placed = place.group, (place.dtype, place.device, place.kernels)
    if group is not None:
        parts = partial(shard_tensors, config=config, shard=group.shard)
        adapters = [shard_adapter(one, config, group.shard) for one in adapters]
        config = shard_config(config, group.shard)
    with open_weights(store, *placed, parts) as loader:
        loader.group, loader.storage, loader.packing = group, place.storage, config.packing
        if adapters:
            active = ActiveAdapters(len(adapters))
            ranks = 1 if group is None else group.shard.size
            loader.adapters = AdapterStacker(
                adapters, active, place.products, place.dtype, place.device, ranks
            )
        if classifies(checkpoint.config):
            loader.drop(CLASSES)
        if TEXT in checkpoint.config:
            loader.keep_text()
        return _build(loader, config, max_len)


def load_classes(
    checkpoint: Checkpoint, labels: int, hidden: int, device: torch.device
) -> Tensor:
    """A classifier's head: [labels, hidden] in float32, because it is small."""
    if checkpoint.dummy_seed is not None:
        raise UnusableCheckpoint(f"--load-format dummy: {CLASSES} is not made up")
    store = open_store(checkpoint.weight_files, device)
    with open_weights(store, torch.float32, device) as loader:
        head = loader.take(CLASSES, labels, hidden)
        loader.files.clear()
    return head


def store_of(
    checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> TensorStore:
    """The checkpoint's tensors; for dummy weights, any tensor that the config asks for."""
    if checkpoint.dummy_seed is None:
        return open_store(checkpoint.weight_files, device)
    if config.packing is not None:
        raise UnusableCheckpoint("--load-format dummy: quantized weights are not made up")
    asking = ShapeRecorder({}, dtype, torch.device("meta"))
    _build(asking, config, max_len=1)
    return dummy_store(asking.shapes, dtype, device, checkpoint.dummy_seed)


def _build(loader: WeightLoader, config: ModelConfig, max_len: int) -> Decoder:
    hidden, vocabulary = config.hidden_size, config.vocab_size
    words = loader.group.shard.part(vocabulary) if loader.group else range(vocabulary)
    embedding = loader.take("model.embed_tokens.weight", vocabulary, hidden)
    layers = tuple(_layer(loader, config, index) for index in range(config.num_layers))
    norm = _norm(loader, config, "model.norm", hidden)
    behind = range(config.num_layers, config.num_layers + config.unused_layers)
    for name in (*config.unused_names, *(f"model.layers.{index}." for index in behind)):
        loader.drop_all(name)
    head = loader.head(_head_weight(loader, config, embedding[words.start : words.stop]))
    if loader.group is not None:
        head = VocabParallelHead(head, vocabulary, loader.group)
    ropes = [rope_table(rope, config.head_dim, max_len) for rope in config.ropes]
    placed = tuple(rope.to(loader.device, loader.dtype) for rope in ropes)
    scale = config.embedding_scale
    if scale is not None and config.embedding_scale_rounds:
        scale = torch.tensor(scale, dtype=loader.dtype).item()
    active = None if loader.adapters is None else loader.adapters.active
    return Decoder(config, embedding, layers, norm, head, placed, scale, active)


def _head_weight(loader: WeightLoader, config: ModelConfig, embedding: Tensor) -> Tensor:
    """[words, hidden]: the `embedding` if the head is tied, unless the checkpoint has a head
    with other numbers; then the config is wrong, and transformers takes the head as well.
    """
    if config.tied_embeddings and HEAD not in loader:
        return embedding
    weight = loader.take(HEAD, *embedding.shape)
    if not config.tied_embeddings or not torch.equal(weight, embedding):
        return weight
    return embedding


def _layer(loader: WeightLoader, config: ModelConfig, index: int) -> Layer:
    at, names = f"model.layers.{index}.", config.norms

    def norm(name: str | None) -> Norm | None:
        if name is None:
            return None
        return _norm(loader, config, f"{at}{name}", config.hidden_size)

    def before(part: Attention | Mlp, name: str | None) -> LayerNorm | None:
        made = norm(name)
        return made and norm_before(_rounding_for(loader, part), made)

    attention = _attention(loader, config, index, f"{at}self_attn.")
    mlp = read_mlp(loader, config, index)
    norms = before(attention, names.attention), before(mlp, names.mlp)
    few = _few_rows(loader, config, (attention, mlp), norms)
    if loader.group is not None:
        attention, mlp = (
            ParallelAttention(attention, loader.group),
            ParallelMlp(mlp, loader.group),
        )
    return Layer(
        attention=attention,
        mlp=mlp,
        attention_norm=norms[0],
        attention_output_norm=norm(names.attention_output),
        mlp_norm=norms[1],
        mlp_output_norm=norm(names.mlp_output),
        residual_scale=config.residual_scale,
        few_attention=few[0],
        few_mlp=few[1],
    )


def _few_rows(
    loader: WeightLoader,
    config: ModelConfig,
    parts: tuple[Attention, Mlp],
    norms: tuple[LayerNorm | None, LayerNorm | None],
) -> tuple[FewRowsAttention | None, FewRowsMlp | None]:
    """A layer's fused halves, which have no norm behind them, and are on one rank."""
    kernels, names = loader.kernels, config.norms
    products = None if kernels is None else kernels.few_row_products
    if kernels is None or products is None or loader.group is not None:
        return None, None
    active = None if loader.adapters is None else loader.adapters.active
    fused = FusedProducts(products, config.residual_scale, active)
    attention, mlp = None, None
    if names.attention_output is None:
        attention = few_rows_attention(fused, parts[0], norms[0])
    if names.mlp_output is None:
        mlp = few_rows_mlp(fused, parts[1], norms[1], fused_gates(config), kernels)
    return attention, mlp


def _rounding_for(
    loader: WeightLoader, part: Attention | Mlp
) -> QuantizedOutputKernels | DualOutputNorms | None:
    """The kernels that quantize a part's input; with whole rows as well if it has a router."""
    if not isinstance(part, SparseMlp):
        return loader.quantized_kernels_for(_only_product(part))
    experts = part.experts
    return loader.dual_norms_for(
        experts.gate_up if isinstance(experts, StackedExperts) else None
    )


def _only_product(part: Attention | Mlp) -> Linear | None:
    """The only product that gets a part's input; None if there are several."""
    if isinstance(part, GroupedAttention):
        return part.query_key_value
    if isinstance(part, LatentAttention):
        return part.inward
    return part.gate_up if isinstance(part, GatedMlp) else None


def _attention(loader: WeightLoader, config: ModelConfig, index: int, at: str) -> Attention:
    if config.latent is not None:
        return read_latent_attention(loader, config, config.latent, index, at)
    plan, hidden, head_dim = config.layers[index], config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    queries, keys = heads * head_dim, kv_heads * head_dim
    parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    if config.fused_qkv:
        parts = {"qkv_proj": queries + 2 * keys}
    order = head_order(plan.rope, head_dim) if plan.rope else None
    rows = _rows(order, heads, kv_heads)
    norms = [
        _head_norm(loader, config, f"{at}{name}", count, order)
        for name, count in (("q_norm", heads), ("k_norm", kv_heads))
    ]
    sinks = loader.take(f"{at}sinks", heads) if config.sinks else None
    return GroupedAttention(
        index,
        heads,
        kv_heads,
        loader.fuse(at, parts, hidden, bias=config.qkv_bias, order=rows),
        loader.fuse(at, {"o_proj": hidden}, queries, bias=config.output_bias),
        AttentionStyle(config.attention_scale, plan.window, config.attention_softcap, sinks),
        rope=config.ropes.index(plan.rope) if plan.rope else None,
        query_norm=norms[0],
        key_norm=norms[1],
    )


def _rows(order: Tensor | None, heads: int, kv_heads: int) -> Tensor | None:
    """Row indices of fused queries, keys and values: the first two in a head's `order`."""
    if order is None:
        return None
    dim, turning = len(order), heads + kv_heads
    first = torch.arange(turning)[:, None] * dim
    values = torch.arange(turning * dim, (turning + kv_heads) * dim)
    return torch.cat(((first + order).flatten(), values))


def _head_norm(
    loader: WeightLoader, config: ModelConfig, name: str, heads: int, order: Tensor | None
) -> Norm | None:
    """The norm of queries or keys, over one head or over all of them, each in its `order`."""
    if config.qk_norm is None:
        return None
    count = heads if config.qk_norm == "all" else 1
    norm = _norm(loader, config, name, count * config.head_dim)
    if order is not None:
        weight = norm.weight.view(count, -1)[:, order.to(loader.device)].flatten()
        norm = replace(norm, weight=weight)
    if loader.group is None or config.qk_norm != "all":
        return norm
    return ParallelNorm(norm.weight, norm.eps, group=loader.group)


def _norm(loader: WeightLoader, config: ModelConfig, name: str, size: int) -> Norm:
    """Read a norm; 1 + weight is computed and kept in float32, where little of it is lost."""
    weight = loader.take(f"{name}.weight", size)
    weight = weight.float() + 1 if config.norm_adds_one else weight
    return Norm(weight, config.norm_eps, loader.kernels)
