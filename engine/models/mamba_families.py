"""The families in which layers of Mamba-2 keep a state, and others attend, as differences from
Llama.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from engine.models.dense_families import granite
from engine.models.family import FULL, LINEAR, Family, Raw, llama, routing

TODAY = {"attention": FULL, "mamba": LINEAR}
AUTO = "auto"  # as wide as heads have to be
ROTARY, INNER = "partial_rotary_factor", "mamba_d_ssm"


def mamba_sizes(raw: Raw) -> dict[str, Any]:
    """The sizes: heads and their width have to make `mamba_expand` times the hidden size, or
    `mamba_d_ssm`, if the family has that.
    """
    _check_types(raw)
    heads, groups, width = (raw[f"mamba_{one}"] for one in ("n_heads", "n_groups", "d_head"))
    inner = raw["mamba_expand"] * raw["hidden_size"]
    wanted = f"mamba_expand {raw['mamba_expand']} times hidden_size {raw['hidden_size']}"
    if (said := raw.get(INNER)) is not None:
        inner, wanted = said, f"{INNER} {said}"
    width = inner // heads if width == AUTO else width
    if heads * width != inner:
        raise ValueError(f"mamba_n_heads {heads} of mamba_d_head {width} are not {wanted}")
    if heads % groups:
        raise ValueError(f"mamba_n_heads {heads} over mamba_n_groups {groups}")
    return {
        "key_heads": groups,
        "value_heads": heads,
        "key_width": raw["mamba_d_state"],
        "value_width": width,
        "kernel": raw["mamba_d_conv"],
        "convolution_bias": raw["mamba_conv_bias"],
        "bias": raw["mamba_proj_bias"],
        "output_bias": raw["mamba_proj_bias"],
    }


def _check_types(raw: Raw) -> None:
    """Of what is computed with before all types are checked."""
    numbers = ["mamba_expand", "mamba_n_groups", "mamba_n_heads"]
    numbers += [] if raw["mamba_d_head"] == AUTO else ["mamba_d_head"]
    for name in numbers:
        if not isinstance(raw[name], int | float):
            raise TypeError(f"{name} has to be a number, and is {raw[name]!r}")
    for name in ("mamba_conv_bias", "mamba_proj_bias"):
        if not isinstance(raw[name], bool):
            raise TypeError(f"{name} has to be true or false, and is {raw[name]!r}")
    for name in ("attn_layer_indices", "layer_types"):
        if not isinstance(raw.get(name) or [], list):
            raise TypeError(f"{name} has to be a list, and is {raw[name]!r}")


def _granite_hybrid(raw: Raw) -> dict[str, Any]:
    """Granite's scales; experts beside an MLP that every token goes through, or that alone."""
    layers, wide = raw["num_hidden_layers"], raw["shared_intermediate_size"]
    mamba = mamba_sizes(raw)
    given, experts = raw.get("layer_types") or [LINEAR] * layers, None
    if raw["num_local_experts"]:
        experts = {
            "routing": routing(raw, normalised=True),
            "width": raw["intermediate_size"],
            "block": "block_sparse_moe",
            "router": "router.layer",
            "stacks": ("input_linear.weight", "output_linear.weight"),
            "shared": {"name": "shared_mlp", "width": wide, "within": False},
        }
    return {
        **granite({**raw, "mlp_bias": False}),
        "intermediate_size": wide,
        "mlp_names": {
            "block": "shared_mlp",
            "inward": ("input_linear",),
            "outward": "output_linear",
        },
        "experts": experts,
        "sparse": [experts is not None] * layers,
        "rotated": [raw.get("position_embedding_type") == "rope"] * layers,
        "layer_types": [TODAY.get(kind, kind) for kind in given],
        "mamba": mamba,
    }


def _bamba(raw: Raw) -> dict[str, Any]:
    mamba, layers = mamba_sizes(raw), range(raw["num_hidden_layers"])
    attending = raw.get("attn_layer_indices") or ()
    _refuse_rotary(raw)
    return {
        **llama(raw),
        "norms": {"mlp": "pre_ff_layernorm", "last": "final_layernorm"},
        "mlp_names": {"block": "feed_forward"},
        "partial_rotary": True,
        "layer_types": [FULL if at in attending else LINEAR for at in layers],
        "mamba": mamba,
    }


def _bamba_today(raw: Raw) -> Raw:
    """Half of each head turns, whatever else is said outside `rope_parameters`."""
    return {**raw, ROTARY: 0.5}


def _refuse_rotary(raw: Raw) -> None:
    """Published configs say how many dimensions turn, beside the share that is always so."""
    said, wide, heads = (
        raw.get("attn_rotary_emb"),
        raw["hidden_size"],
        raw["num_attention_heads"],
    )
    if said is not None and 2 * said != wide // heads:
        width = f"hidden_size {wide} over num_attention_heads {heads}"
        raise ValueError(f"attn_rotary_emb {said} is not half of {width}")


UNSAID = {
    "attention_bias": False,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_head": AUTO,
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "mamba_proj_bias": False,
}
_GRANITE_UNSAID = {
    **UNSAID,
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "max_position_embeddings": 2048,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "residual_multiplier": 1.0,
    "shared_intermediate_size": 1024,
}
_BAMBA_UNSAID = {
    **UNSAID,
    "max_position_embeddings": 262_144,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}
UNLIMITED: Sequence[object] = (
    None,
    (0.0, inf),
    [0.0, inf],
    [0.0, {"__float__": "Infinity"}],
)
NEUTRAL: Mapping[str, Sequence[object]] = {
    "hidden_act": (None, "silu"),  # the convolution's as well
    "time_step_limit": UNLIMITED,
}
_GRANITE_NEUTRAL = {
    **NEUTRAL,
    "normalization_function": (None, "rmsnorm"),
    "position_embedding_type": (None, "nope", "rope"),
}

MAMBAS = {
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        _granite_hybrid,
        _GRANITE_UNSAID,
        neutral=_GRANITE_NEUTRAL,
    ),
    "bamba": Family("BambaForCausalLM", _bamba, _BAMBA_UNSAID, _bamba_today, NEUTRAL),
}
