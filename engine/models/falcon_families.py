"""The family whose layers attend and keep a state of Mamba-2 side by side, as differences from
Llama.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.models.family import Family, Raw, llama
from engine.models.mamba_families import INNER, NEUTRAL, UNSAID, mamba_sizes

INS_AND_OUTS = tuple(
    f"{part}_{way}_multiplier" for part in ("attention", "ssm") for way in ("in", "out")
)
LISTS: Mapping[str, int] = {"mlp_multipliers": 2, "ssm_multipliers": 5}
"""How many numbers each has."""
FLAGS = ("attention_bias", "mlp_bias", "projectors_bias", "mamba_rms_norm")


def _falcon_h1(raw: Raw) -> dict[str, Any]:
    """The multiplier of keys is part of the scale of scores, so that keys are not rounded."""
    for name in FLAGS:
        if not isinstance(raw[name], bool):
            raise TypeError(f"{name} has to be true or false, and is {raw[name]!r}")
    if not isinstance(raw["key_multiplier"], int | float):
        raise TypeError(f"key_multiplier has to be a number, and is {raw['key_multiplier']!r}")
    head_dim = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    sizes = {"norm": raw["mamba_rms_norm"], "output_bias": raw["projectors_bias"]}
    return {
        **llama(raw),
        "norms": {"mlp": "pre_ff_layernorm", "last": "final_layernorm"},
        "mlp_names": {"block": "feed_forward"},
        "side_by_side": True,
        "mamba": {**mamba_sizes(raw), **sizes},
        "embedding_scale": raw["embedding_multiplier"],
        "logits_scale": raw["lm_head_multiplier"],
        "attention_scale": raw["key_multiplier"] * head_dim**-0.5,
        "multipliers": {name: raw[name] for name in INS_AND_OUTS} | _lists(raw),
    }


def _lists(raw: Raw) -> dict[str, Sequence[float]]:
    """The multipliers of several parts each; unsaid ones are 1."""
    found = dict[str, Sequence[float]]()
    for name, count in LISTS.items():
        found[name] = given = raw[name] or [1.0] * count
        numbers = given if isinstance(given, list) else ()
        if [isinstance(one, int | float) for one in numbers] != [True] * count:
            raise TypeError(f"{name} has to be a list of {count} numbers, and is {given!r}")
    return found


def _falcon_h1_today(raw: Raw) -> Raw:
    """Gates come first wherever a norm is; without one there is no order."""
    return raw if raw["mamba_rms_norm"] else {**raw, "mamba_norm_before_gate": False}


_UNSAID = {
    **UNSAID,
    **dict.fromkeys(INS_AND_OUTS, 1.0),
    **dict.fromkeys(LISTS),
    "embedding_multiplier": 1.0,
    "key_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
    INNER: 1024,
    "mamba_norm_before_gate": True,
    "mamba_rms_norm": False,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 8,
    "projectors_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-5,
}
# what transformers does not apply must not ask for anything
_NEUTRAL = {
    **NEUTRAL,
    "attn_layer_indices": (None,),
    "mamba_norm_before_gate": (False,),
    "mamba_use_mlp": (None, True),
}

FALCONS = {
    "falcon_h1": Family("FalconH1ForCausalLM", _falcon_h1, _UNSAID, _falcon_h1_today, _NEUTRAL)
}
