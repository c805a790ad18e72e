"""Which code runs a checkpoint: a family of our own, or else transformers'.

For that see engine/models/transformers_model.py.
"""

import logging
from collections.abc import Mapping

from engine.checkpoints.checkpoint import Checkpoint
from engine.checkpoints.placement import Placement
from engine.errors import UnsupportedArchitecture, UnusableAdapter, UnusableCheckpoint
from engine.models.config import ModelConfig, parse_config
from engine.models.model import Model
from engine.models.rope import reaches_far
from engine.models.transformers_loading import load_transformers_model
from engine.models.transformers_model import TransformersConfig, read_transformers_config
from engine.models.weights import load_decoder
from engine.settings import LORA_FLAG

AnyConfig = ModelConfig | TransformersConfig
log = logging.getLogger(__name__)


def read_config(checkpoint: Checkpoint, implementation: str) -> AnyConfig:
    """Parse config.json for our code or transformers'; raises UnusableCheckpoint.

    `implementation` is EngineConfig's `model_impl`.
    """
    if implementation == "transformers":
        return read_transformers_config(checkpoint)
    try:
        return parse_config(checkpoint.config)
    except UnsupportedArchitecture as error:
        if implementation != "auto":
            raise
        try:
            config = read_transformers_config(checkpoint)
        except UnusableCheckpoint as theirs:
            raise UnusableCheckpoint(
                f"{error}; and by transformers' code: {theirs}"
            ) from theirs
        log.warning(
            "transformers' own code runs this model, which is slower than ours: %s", error
        )
        return config


def load_model(
    checkpoint: Checkpoint,
    config: AnyConfig,
    max_len: int,
    place: Placement,
) -> Model:
    """Read all weights, for sequences up to `max_len`; raises UnusableCheckpoint."""
    if isinstance(config, TransformersConfig):
        if place.adapters:
            raise UnusableAdapter(
                f"{LORA_FLAG} {place.adapters[0].name}: LoRA adapters are for models that our "
                "own code runs, not transformers'"
            )
        return load_transformers_model(
            checkpoint, config, place.dtype, place.device, place.kernels
        )
    return load_decoder(checkpoint, config, max_len, place)


def kv_variant(
    config: AnyConfig, max_len: int, quantization: str | None = None
) -> Mapping[str, str]:
    """The settings in which engines of one checkpoint must agree to exchange KV.

    Our code may order a head's dimensions differently from transformers (rope.py:head_order).
    """
    weights = {"quantization": quantization or "none"}
    if isinstance(config, TransformersConfig):
        return {"model_impl": "transformers", **weights}
    far = ["long" if reaches_far(rope, max_len) else "short" for rope in config.ropes]
    return {"model_impl": "pdserve", "rope_factors": " ".join(far), **weights}
