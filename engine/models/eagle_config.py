"""The config.json of an EAGLE-3 head, in the forms that are published. Torch-free."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from engine.errors import UnusableCheckpoint
from engine.models.config import ModelConfig, parse_config
from engine.models.rope_config import Size

NESTED = "transformer_layer_config"  # of the speculators library
MORE = "eagle_config"  # of vLLM's and SGLang's heads
NAMED_LAYERS = "eagle_aux_hidden_state_layer_ids"


class EagleConfig(msgspec.Struct, frozen=True):
    """A head: `layer` is the config of its one layer, and of all that is as in a Llama.

    It draws from `words` tokens, and reads the residual stream before these `inputs` layers of
    the model, each `input_size` wide. `norm_before_residual`: its residual stream begins behind
    the norm of what it reads.
    """

    layer: ModelConfig
    words: int
    inputs: tuple[int, ...]
    input_size: int
    norm_before_residual: bool = False


def parse_eagle_config(raw: Mapping[str, Any], model: ModelConfig) -> EagleConfig:
    """Parse the config of a head of this `model`; raises UnusableCheckpoint."""
    inner, told = raw.get(NESTED) or raw, raw.get(MORE) or {}
    for name, one in ((NESTED, inner), (MORE, told)):
        if not isinstance(one, Mapping):
            raise UnusableCheckpoint(f"config.json: {name} is no object")
    layer = parse_config({**inner, "model_type": "llama", "architectures": None})
    if layer.num_layers != 1:
        raise UnusableCheckpoint(f"config.json: {layer.num_layers} layers, a head has one")
    fields = {
        "words": raw.get("draft_vocab_size") or layer.vocab_size,
        "inputs": raw.get(NAMED_LAYERS) or told.get(NAMED_LAYERS) or _usual(model.num_layers),
        "input_size": raw.get("target_hidden_size") or model.hidden_size,
        "norm_before_residual": raw.get("norm_before_residual", False),
    }
    try:
        config = EagleConfig(layer, *msgspec.structs.astuple(msgspec.convert(fields, _Fields)))
    except msgspec.ValidationError as error:
        raise UnusableCheckpoint(f"config.json: {error}") from error
    _check(config, model)
    layers = layer.layers * (model.num_layers + 1)  # its layer is the one behind the model's
    return replace(config, layer=replace(layer, layers=layers))


class _Fields(msgspec.Struct):
    words: Size
    inputs: tuple[int, ...]
    input_size: Size
    norm_before_residual: bool


def _usual(layers: int) -> Sequence[int]:
    """Before one of the first layers, one in the middle, and one of the last."""
    return 2, layers // 2, layers - 3


def _check(config: EagleConfig, model: ModelConfig) -> None:
    """Raises UnusableCheckpoint for the head of another model."""
    layer, last = config.layer, model.num_layers
    if not all(0 <= one < last for one in config.inputs):
        inputs = ", ".join(map(str, config.inputs))
        raise UnusableCheckpoint(f"it reads layers {inputs} of a model of {last}")
    if config.input_size != model.hidden_size:
        sizes = f"{config.input_size} numbers, the model's have {model.hidden_size}"
        raise UnusableCheckpoint(f"it reads hidden states of {sizes}")
    if layer.vocab_size != model.vocab_size:
        raise UnusableCheckpoint(
            f"it is for {layer.vocab_size} tokens, the model has {model.vocab_size}"
        )
    ours, theirs = (one.num_kv_heads * one.head_dim for one in (layer, model))
    alike = (layer.num_kv_heads, ours) == (model.num_kv_heads, theirs)
    if not alike or model.latent is not None or model.global_heads is not None:
        raise UnusableCheckpoint(
            f"its KV has {layer.num_kv_heads} heads of {layer.head_dim} numbers, unlike the "
            "model's, and both are in the same blocks"
        )
