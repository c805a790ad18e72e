"""The tensors of a layer for multi-token prediction, which a checkpoint has behind its last."""

from functools import partial

import torch
from msgspec.structs import replace
from torch import Tensor

from engine.checkpoints.linear import Linear
from engine.checkpoints.weight_loader import WeightLoader
from engine.errors import UnusableCheckpoint
from engine.models.decoder import Decoder
from engine.models.layer_weights import read_layer
from engine.models.norm_weights import read_norm
from engine.models.prediction_head import PredictionHead
from engine.models.tensor_parallel import VocabParallelHead
from engine.settings import SPECULATIVE_FLAG


def read_prediction_head(
    loader: WeightLoader, decoder: Decoder, words: Tensor
) -> PredictionHead:
    """Read the first layer for multi-token prediction; `words` [words, hidden] is what the
    decoder's own output layer is made of, this rank's rows of it.

    LoRA adapters do not change it. Raises UnusableCheckpoint, which names the setting.
    """
    adapters, loader.adapters = loader.adapters, None
    try:
        return _read(loader, decoder, words)
    except UnusableCheckpoint as error:
        raise UnusableCheckpoint(f"{SPECULATIVE_FLAG}: the draft head's {error}") from error
    finally:
        loader.adapters = adapters


def _read(loader: WeightLoader, decoder: Decoder, words: Tensor) -> PredictionHead:
    config, hidden = decoder.config, decoder.config.hidden_size
    at = f"model.layers.{config.num_layers}."
    norm = partial(read_norm, loader, config)
    like_the_last = replace(config.layers[-1], key_scale=1.0, value_scale=1.0)
    one_more = replace(config, layers=(*config.layers, like_the_last))
    return PredictionHead(
        config,
        _embedding(loader, f"{at}embed_tokens.weight", decoder.embedding),
        norm(f"{at}enorm", hidden),
        norm(f"{at}hnorm", hidden),
        loader.fuse(at, {"eh_proj": hidden}, 2 * hidden, bias=False),
        read_layer(loader, one_more, config.num_layers),
        norm(f"{at}shared_head.norm", hidden),
        _output(loader, f"{at}shared_head.head.weight", decoder, words),
        decoder.ropes,
        decoder.kv_shape,
    )


def _embedding(loader: WeightLoader, name: str, shared: Tensor) -> Tensor:
    """The decoder's, unless the checkpoint has other numbers here."""
    if name not in loader:
        return shared
    own = loader.take(name, *shared.shape)
    return shared if torch.equal(own, shared) else own


def _output(loader: WeightLoader, name: str, decoder: Decoder, words: Tensor) -> Linear:
    """Likewise, of the layer that makes logits."""
    vocabulary, group = decoder.config.vocab_size, loader.group
    if name not in loader:
        return decoder.head
    own = loader.take(name, vocabulary, words.shape[1])
    if group is not None:
        ours = group.shard.part(vocabulary)
        own = own[ours.start : ours.stop]
    if torch.equal(own, words):
        return decoder.head
    output = loader.head(own)
    return output if group is None else VocabParallelHead(output, vocabulary, group)
