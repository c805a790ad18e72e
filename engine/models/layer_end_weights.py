"""The tensors of layers' own inputs, and of what is at the end of a layer."""

import torch

from engine.checkpoints.weight_loader import WeightLoader
from engine.models.config import ModelConfig
from engine.models.layer_inputs import GatedInput, LayerEnd, LayerInputMaker
from engine.models.mlp import ACTIVATIONS
from engine.models.norm_weights import read_norm


def read_input_maker(loader: WeightLoader, config: ModelConfig, width: int) -> LayerInputMaker:
    """Read what makes all layers' own inputs, of `width` numbers each."""
    words, hidden, every = config.vocab_size, config.hidden_size, config.num_layers * width
    embedding = loader.take("model.embed_tokens_per_layer.weight", words, every)
    parts = {"per_layer_model_projection": every}
    scale = torch.tensor(width**0.5, dtype=loader.dtype).item()
    return LayerInputMaker(
        embedding,
        loader.fuse("model.", parts, hidden, bias=False),
        read_norm(loader, config, "model.per_layer_projection_norm", width),
        (scale, hidden**-0.5),
    )


def read_layer_end(loader: WeightLoader, config: ModelConfig, at: str) -> LayerEnd | None:
    """Read what is at the end of the layer under `at`; None: nothing."""
    if not config.layer_scalars:
        return None
    gated, hidden, width = None, config.hidden_size, config.layer_input_width
    if width is not None:
        gated = GatedInput(
            loader.fuse(at, {"per_layer_input_gate": width}, hidden, bias=False),
            ACTIVATIONS[config.activation],
            loader.fuse(at, {"per_layer_projection": hidden}, width, bias=False),
            read_norm(loader, config, f"{at}post_per_layer_input_norm", hidden),
        )
    return LayerEnd(gated, loader.take(f"{at}layer_scalar", 1))
