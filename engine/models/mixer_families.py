"""The families whose layers have one part each: attention, a state, an MLP or experts.

Their attention knows of no positions, as layers with a state tell these apart. Layers of
multi-token prediction are not loaded.
"""

from collections.abc import Mapping
from typing import Any

from engine.models.deepseek_families import groups_of
from engine.models.family import FULL, LINEAR, Family, Raw, routing
from engine.models.mamba_families import UNLIMITED

MLP, MOE = "mlp", "moe"
LETTERS = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}
OLD_KINDS = {"mamba": LINEAR, "attention": FULL}
KINDS, PATTERN = "layers_block_type", "hybrid_override_pattern"


def _nemotron_h(raw: Raw) -> dict[str, Any]:
    kinds = raw[KINDS]
    thinks = [kind in (MLP, MOE) for kind in kinds]
    return {
        "norm_eps": raw["layer_norm_epsilon"],
        "squared_relu": True,
        "mlp_names": {"inward": ("up_proj",)},
        "mixer_names": True,
        "mlp_bias": raw["mlp_bias"],
        "experts": _experts(raw) if MOE in kinds else None,
        "mamba": _mamba(raw),
        "layer_types": [FULL if kind in (MLP, MOE) else kind for kind in kinds],
        "rotated": [False] * len(kinds),
        "sparse": [kind == MOE for kind in kinds],
        "mixes": [not mlp for mlp in thinks],
        "has_mlp": thinks,
        "unused_names": ("mtp.",),
    }


def _mamba(raw: Raw) -> dict[str, Any]:
    heads, groups = raw["mamba_num_heads"], raw["n_groups"]
    if heads % groups:
        raise ValueError(f"mamba_num_heads {heads} over n_groups {groups}")
    return {
        "key_heads": groups,
        "value_heads": heads,
        "key_width": raw["ssm_state_size"],
        "value_width": raw["mamba_head_dim"],
        "kernel": raw["conv_kernel"],
        "convolution_bias": raw["use_conv_bias"],
        "bias": raw["use_bias"],
        "output_bias": raw["use_bias"],
    }


def _experts(raw: Raw) -> dict[str, Any]:
    """DeepSeek-V3's, but for their sizes."""
    return {
        "routing": routing(
            raw,
            normalised=raw["norm_topk_prob"],
            scoring="sigmoid",
            scale=raw["routed_scaling_factor"],
            groups=groups_of(raw),
        ),
        "width": raw["moe_intermediate_size"],
        "correction": "gate.e_score_correction_bias",
        "shared": {
            "name": "shared_experts",
            "width": raw["moe_shared_expert_intermediate_size"],
        },
        "latent_width": raw.get("moe_latent_size"),
    }


def _nemotron_h_today(raw: Raw) -> Raw:
    """Today's spelling: each layer's kind in a word."""
    kinds = raw.get(KINDS) or raw.get("layer_types") or _by_letters(raw)
    if not isinstance(kinds, list):
        raise TypeError(f"{KINDS} {kinds!r} is no list")
    kinds = [OLD_KINDS.get(kind, kind) for kind in kinds]
    head_dim = raw.get("head_dim") or raw.get("attention_head_dim") or 128
    return {"num_hidden_layers": len(kinds), **raw, KINDS: kinds, "head_dim": head_dim}


def _by_letters(raw: Raw) -> list[str]:
    pattern = raw[PATTERN]
    if not isinstance(pattern, str) or {*pattern} - {*LETTERS}:
        raise ValueError(f"{PATTERN} {pattern!r} has to be of the letters {' '.join(LETTERS)}")
    return [LETTERS[letter] for letter in pattern]


_UNSAID: Mapping[str, object] = {
    "conv_kernel": 4,
    "intermediate_size": 21_504,
    "layer_norm_epsilon": 1e-5,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "n_group": 1,
    "n_groups": 8,
    "n_routed_experts": 8,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "routed_scaling_factor": 1.0,
    "ssm_state_size": 128,
    "topk_group": 1,
    "use_bias": False,
    "use_conv_bias": True,
}
# what transformers does not apply must not ask for anything
_NEUTRAL = {
    "attention_bias": (None, False),
    "mamba_hidden_act": (None, "silu"),
    "mamba_proj_bias": (None, False),
    "mlp_hidden_act": (None, "relu2"),
    "n_shared_experts": (None, 1),
    "residual_in_fp32": (None, False),
    "time_step_limit": UNLIMITED,
}

MIXERS = {
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        _nemotron_h,
        _UNSAID,
        today=_nemotron_h_today,
        neutral=_NEUTRAL,
    )
}
