"""The tensors of an EAGLE-3 head, under the names that its authors and others publish."""

from dataclasses import replace
from functools import partial

import torch
from msgspec.structs import replace as with_fields
from torch import Tensor

from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.linear import Linear
from engine.checkpoints.placement import Placement
from engine.checkpoints.store import open_store
from engine.checkpoints.weight_loader import Parts, WeightLoader, open_weights
from engine.errors import UnusableCheckpoint
from engine.models.attention_weights import read_attention
from engine.models.decoder import Decoder
from engine.models.dense_weights import read_dense_mlp
from engine.models.eagle_config import EagleConfig
from engine.models.eagle_head import EagleHead, EagleLayer
from engine.models.layer import Mlp
from engine.models.norm_weights import read_norm
from engine.models.rope import rope_table
from engine.models.shards import shard_config, shard_tensors
from engine.models.tensor_parallel import ParallelAttention, ParallelMlp, VocabParallelHead

LAYER_NAMES = ("model.midlayer.", "model.layers.0.")  # its authors', and others'
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
WORDS, WHICH_WORDS = "d2t", "t2d"


def load_eagle_head(
    checkpoint: Checkpoint,
    config: EagleConfig,
    decoder: Decoder,
    max_len: int,
    place: Placement,
) -> EagleHead:
    """Read all weights; each rank reads its own part. Raises UnusableCheckpoint.

    Its sizes were checked: `check_divisible`.
    """
    store, group = open_store(checkpoint.weight_files, place.device), place.group
    store = replace(store, title="loading the draft head")
    parts: Parts = dict
    if group is not None:
        parts = partial(shard_tensors, config=config.layer, shard=group.shard)
        config = with_fields(config, layer=shard_config(config.layer, group.shard))
    with open_weights(store, place.dtype, place.device, place.kernels, parts) as loader:
        loader.group, loader.storage = group, place.storage
        loader.packing = config.layer.packing
        return _read(loader, config, decoder, max_len)


def _read(
    loader: WeightLoader, config: EagleConfig, decoder: Decoder, max_len: int
) -> EagleHead:
    layer, hidden = config.layer, config.layer.hidden_size
    (rope,) = layer.ropes
    table = rope_table(rope, layer.head_dim, max_len).to(loader.device, loader.dtype)
    width, norm = len(config.inputs) * config.input_size, partial(read_norm, loader, layer)
    return EagleHead(
        layer,
        _embedding(loader, config, decoder),
        loader.fuse("model.", {"fc": hidden}, width, bias=False),
        _read_layer(loader, config),
        norm("model.norm", hidden),
        _output(loader, config),
        _words(loader, config),
        table,
        decoder.kv_shape,
    )


def _read_layer(loader: WeightLoader, config: EagleConfig) -> EagleLayer:
    layer, hidden = config.layer, config.layer.hidden_size
    mark = "hidden_norm.weight"
    at = next((one for one in LAYER_NAMES if f"{one}{mark}" in loader), LAYER_NAMES[0])
    norm = partial(read_norm, loader, layer)
    attention = read_attention(
        loader, layer, layer.num_layers - 1, f"{at}self_attn.", 2 * hidden
    )
    mlp: Mlp = read_dense_mlp(loader, layer, f"{at}mlp.", layer.intermediate_size)
    if (group := loader.group) is not None:
        attention, mlp = ParallelAttention(attention, group), ParallelMlp(mlp, group)
    return EagleLayer(
        norm(f"{at}input_layernorm", hidden),
        norm(f"{at}hidden_norm", hidden),
        attention,
        norm(f"{at}post_attention_layernorm", hidden),
        mlp,
        config.norm_before_residual,
    )


def _embedding(loader: WeightLoader, config: EagleConfig, decoder: Decoder) -> Tensor:
    """The model's, unless the head has its own."""
    size = config.layer.vocab_size, config.layer.hidden_size
    if EMBEDDING not in loader and decoder.embedding.shape == size:
        return decoder.embedding
    own = loader.take(EMBEDDING, *size)
    shared = decoder.embedding
    return shared if shared.shape == size and torch.equal(own, shared) else own


def _output(loader: WeightLoader, config: EagleConfig) -> Linear:
    group = loader.group
    words = range(config.words) if group is None else group.shard.part(config.words)
    output = loader.head(loader.take(OUTPUT, len(words), config.layer.hidden_size))
    return output if group is None else VocabParallelHead(output, config.words, group)


def _words(loader: WeightLoader, config: EagleConfig) -> Tensor | None:
    """[words] int64: the model's tokens that the head draws from; None: all of them.

    The checkpoint has by how much each is more than its place.
    """
    loader.drop(WHICH_WORDS)
    if WORDS not in loader and config.words == config.layer.vocab_size:
        return None
    more = loader.take(WORDS, config.words, dtype=torch.int64)
    words = more + torch.arange(config.words, device=loader.device)
    known = (words >= 0) & (words < config.layer.vocab_size)
    if not bool(known.all()) or len(words.unique()) < len(words):
        raise UnusableCheckpoint(f"tensor {WORDS} is no choice of the model's tokens")
    return words
