"""Names of tensors and layers in families whose layers have one part each, called a mixer.

They were published as below. transformers has `model` in place of `backbone`, and nothing if
there is no head:

    backbone.embeddings.weight              model.embed_tokens.weight
    backbone.layers.0.norm.weight           model.layers.0.input_layernorm.weight
    backbone.layers.0.mixer.q_proj.weight   model.layers.0.self_attn.q_proj.weight
    backbone.norm_f.weight                  model.norm.weight

The names on the right are those of other families, and of this project.
"""

import re

from engine.checkpoints.text_names import WRAPPED
from engine.models.config import ModelConfig
from engine.models.layer_plan import LayerPlan

BACKBONE = "backbone."
_AROUND = re.compile(r"(embeddings|norm_f)(\..+)")
_LAYER = re.compile(r"layers\.(\d+)\.(norm|mixer)(\..+)")
_OURS = {"embeddings": "embed_tokens", "norm_f": "norm"}


def mixer_name(name: str, config: ModelConfig) -> str:
    """The plain name of a tensor or layer; of one that is not of a model's layers, its own."""
    inner = name.removeprefix(BACKBONE).removeprefix(WRAPPED)
    if around := _AROUND.fullmatch(inner):
        return f"{WRAPPED}{_OURS[around[1]]}{around[2]}"
    if (layer := _LAYER.fullmatch(inner)) is None or int(layer[1]) >= config.num_layers:
        return name
    norm, mixer = _parts(config.layers[int(layer[1])], config)
    part = norm if layer[2] == "norm" else mixer
    return f"{WRAPPED}layers.{layer[1]}.{part}{layer[3]}"


def _parts(plan: LayerPlan, config: ModelConfig) -> tuple[str | None, str]:
    """A layer's norm and its one part."""
    if plan.has_mlp:
        return config.norms.mlp, "mlp"
    return config.norms.attention, "mamba" if plan.recurrent else "self_attn"
