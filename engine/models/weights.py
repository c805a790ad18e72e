"""Builds a Decoder from a checkpoint: which tensors make which part, given the config."""

from collections.abc import Callable
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
from engine.lora.active import ActiveAdapters
from engine.lora.stacking import AdapterStacker
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.draft_head import LayerInputs
from engine.models.factors import multiply, scaled_adapter
from engine.models.family import classifies, sees
from engine.models.kv_scales import fold_kv_scales, folds_kv_scales
from engine.models.layer_end_weights import read_input_maker
from engine.models.layer_weights import read_layer
from engine.models.mixer_names import mixer_name
from engine.models.multipliers import product_factors
from engine.models.norm_weights import read_norm
from engine.models.prediction_weights import read_prediction_head
from engine.models.rope import query_scales, rope_table
from engine.models.shards import shard_adapter, shard_config, shard_tensors
from engine.models.tensor_parallel import VocabParallelHead

CLASSES, HEAD = "score.weight", "lm_head.weight"
NameOf = Callable[[str], str | None]


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
    if (plain := _plain_names(checkpoint, config)) is not None:
        adapters = [one.renamed(plain) for one in adapters]
    group, placed = place.group, (place.dtype, place.device, place.kernels)
    if group is not None:
        parts = partial(shard_tensors, config=config, shard=group.shard)
        adapters = [shard_adapter(one, config, group.shard) for one in adapters]
        config = shard_config(config, group.shard)
    with open_weights(store, *placed, parts) as loader:
        loader.group, loader.storage, loader.packing = group, place.storage, config.packing
        if classifies(checkpoint.config):
            loader.drop(CLASSES)
        if plain is not None:
            loader.rename(plain)
        if place.kv_scales and folds_kv_scales(config, place.dtype):
            config, factors = fold_kv_scales(loader, config)
            adapters = [scaled_adapter(one, factors) for one in adapters]
        multiply(loader, multiplied := product_factors(config))
        adapters = [scaled_adapter(one, multiplied) for one in adapters]
        if adapters:
            active = ActiveAdapters(len(adapters))
            ranks = 1 if group is None else group.shard.size
            loader.adapters = AdapterStacker(
                adapters, active, place.products, place.dtype, place.device, ranks
            )
        return _build(loader, config, max_len)


def _plain_names(checkpoint: Checkpoint, config: ModelConfig) -> NameOf | None:
    """What the checkpoint's tensors are called here; None: as they are."""
    if config.mixer_names:
        return partial(mixer_name, config=config)
    return text_name if sees(checkpoint.config) else None


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
    layers = tuple(read_layer(loader, config, index) for index in range(config.num_layers))
    norm = read_norm(loader, config, f"model.{config.norms.last}", hidden)
    weight = _head_weight(loader, config, embedding[words.start : words.stop])
    head = loader.head(weight)
    if loader.group is not None:
        head = VocabParallelHead(head, vocabulary, loader.group)
    ropes = [rope_table(rope, config.rope_width(rope), max_len) for rope in config.ropes]
    placed = tuple(rope.to(loader.device, loader.dtype) for rope in ropes)
    scale = config.embedding_scale
    if scale is not None and config.embedding_scale_rounds:
        scale = torch.tensor(scale, dtype=loader.dtype).item()
    scales = query_scales(config.query_scaling, max_len)
    if scales is not None:
        scales = scales.to(loader.device, loader.dtype)
    active = None if loader.adapters is None else loader.adapters.active
    decoder = Decoder(config, embedding, layers, norm, head, placed, scale, scales, active)
    if (width := config.layer_input_width) is not None:
        decoder = replace(decoder, input_maker=read_input_maker(loader, config, width))
    behind = range(config.num_layers, config.num_layers + config.prediction_layers)
    if config.draft_inputs:
        decoder = replace(decoder, layer_inputs=LayerInputs(config.draft_inputs))
    elif config.draft_head:
        decoder = replace(decoder, draft_head=read_prediction_head(loader, decoder, weight))
        behind = behind[1:]
    for name in (*config.unused_names, *(f"model.layers.{index}." for index in behind)):
        loader.drop_all(name)
    return decoder


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
