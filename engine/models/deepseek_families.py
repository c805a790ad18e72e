"""Families with DeepSeek's experts: chosen in groups, one shared, some layers without."""

import math
from typing import Any

from engine.models.family import FULL, SLIDING, Family, Raw, every, routing, windows

SPARSE, DENSE = "sparse", "dense"


def leading_dense(raw: Raw) -> dict[str, Any]:
    """Experts behind some dense layers, one of them for every token."""
    dense, layers = raw["first_k_dense_replace"], range(raw["num_hidden_layers"])
    width, always = raw["moe_intermediate_size"], raw["n_shared_experts"]
    return {
        "experts": {
            "width": width,
            "shared": {"name": "shared_experts", "width": width * always} if always else None,
        },
        "sparse": [at >= dense for at in layers],
    }


def _balanced(raw: Raw) -> dict[str, Any]:
    """V3's experts: scored each alone, and their load balanced without a loss."""
    different = leading_dense(raw)
    different["experts"]["correction"] = "gate.e_score_correction_bias"
    different["experts"]["routing"] = routing(
        raw,
        normalised=raw["norm_topk_prob"],
        scoring="sigmoid",
        scale=raw["routed_scaling_factor"],
        groups=groups_of(raw),
    )
    return different


def groups_of(raw: Raw) -> dict[str, Any] | None:
    """A choice among one group is none: then a single kernel chooses the experts."""
    count, chosen = raw["n_group"], raw["topk_group"]
    if count == chosen == 1:
        return None
    return {"count": count, "chosen": chosen, "judged_by": 2}


def latents(raw: Raw) -> dict[str, Any]:
    """Attention over latents."""
    turned, plain = raw["qk_rope_head_dim"], raw["qk_nope_head_dim"]
    return {
        "head_dim": turned,
        "num_kv_heads": 1,
        "attention_scale": _stretched((plain + turned) ** -0.5, raw),
        "output_bias": raw["attention_bias"],
        "latent": {
            "rank": raw["kv_lora_rank"],
            "plain_dim": plain,
            "value_dim": raw["v_head_dim"],
            "query_rank": raw["q_lora_rank"],
        },
        "qkv_bias": raw["attention_bias"],
    }


def _deepseek_v2(raw: Raw) -> dict[str, Any]:
    different, method = {**latents(raw), **leading_dense(raw)}, raw["topk_method"]
    groups = {"count": raw["n_group"], "chosen": raw["topk_group"]}
    if method not in ("greedy", "group_limited_greedy"):
        raise ValueError(f"topk_method {method} is not supported")
    different["experts"]["routing"] = routing(
        raw,
        normalised=False,
        scale=raw["routed_scaling_factor"],
        groups=groups if method == "group_limited_greedy" else None,
    )
    return {**different, "mlp_bias": raw["mlp_bias"], "rope_interleaved": True}


def _deepseek_v3(raw: Raw) -> dict[str, Any]:
    return {
        **latents(raw),
        **_balanced(raw),
        "rope_interleaved": raw["rope_interleave"],
        "prediction_layers": raw["num_nextn_predict_layers"],
    }


def _glm4_moe_lite(raw: Raw) -> dict[str, Any]:
    """GLM-4.7-Flash: as DeepSeek V3, but which layers have experts may be said one by one."""
    return {**_deepseek_v3(raw), **_one_by_one(raw)}


def _one_by_one(raw: Raw) -> dict[str, Any]:
    """Which layers have experts, if the config names them."""
    if (kinds := raw.get("mlp_layer_types")) is None:
        return {}
    if unknown := {*kinds} - {SPARSE, DENSE}:
        raise ValueError(f"mlp_layer_types {', '.join(sorted(unknown))} are not supported")
    return {"sparse": [kind == SPARSE for kind in kinds]}


def _glm4_moe(raw: Raw) -> dict[str, Any]:
    return {
        **_balanced(raw),
        "qkv_bias": raw["attention_bias"],
        "qk_norm": "head" if raw["use_qk_norm"] else None,
        "partial_rotary": True,
        "prediction_layers": raw["num_nextn_predict_layers"],
    }


def _dots1(raw: Raw) -> dict[str, Any]:
    bias, layers = raw["attention_bias"], range(raw["num_hidden_layers"])
    different = {**_balanced(raw), "qkv_bias": bias, "output_bias": bias, "qk_norm": "head"}
    first = raw["max_window_layers"] if raw["sliding_window"] is not None else len(layers)
    return {**different, **windows(raw, [SLIDING if at >= first else FULL for at in layers])}


def _exaone_moe(raw: Raw) -> dict[str, Any]:
    """Only layers that have a window have rotary embedding."""
    if raw["sliding_window"] is None:
        raise ValueError("sliding_window None is not supported")
    different = _balanced({**raw, "n_shared_experts": raw["num_shared_experts"]})
    different["experts"]["correction"] = "e_score_correction_bias"
    kinds = raw.get("layer_types") or every(raw, raw["sliding_window_pattern"])
    return {
        **different,
        **_one_by_one(raw),
        **windows(raw, kinds),
        "rotated": [kind == SLIDING for kind in kinds],
        "qk_norm": "head",
        "unused_names": ("mtp.",),
    }


def _stretched(scale: float, raw: Raw) -> float:
    """The attention scale, larger for a rope that is stretched (`mscale_all_dim`)."""
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind, weight = rope.get("rope_type", rope.get("type")), rope.get("mscale_all_dim")
    if kind in (None, "default") or not weight or rope["factor"] <= 1:
        return scale
    more: float = 0.1 * weight * math.log(rope["factor"]) + 1.0
    return scale * more * more


_DEEPSEEK_UNSAID = {
    "attention_bias": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
_V2_UNSAID = {
    **_DEEPSEEK_UNSAID,
    "max_position_embeddings": 2048,
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 1407,
    "n_group": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "mlp_bias": False,
    "routed_scaling_factor": 1.0,
    "topk_group": None,
    "topk_method": "greedy",
}
_BALANCED_UNSAID = {
    "attention_bias": False,
    "n_group": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "topk_group": 1,
}
_V3_UNSAID = {
    **_BALANCED_UNSAID,
    **_DEEPSEEK_UNSAID,
    "max_position_embeddings": 4096,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "rope_interleave": True,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
}
_GLM4_MOE_UNSAID = {
    **_BALANCED_UNSAID,
    "max_position_embeddings": 131_072,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 1.0,
    "use_qk_norm": False,
}
_GLM4_MOE_LITE_UNSAID = {
    **_BALANCED_UNSAID,
    "max_position_embeddings": 202_752,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_interleave": True,
    "routed_scaling_factor": 1.8,
    "v_head_dim": 256,
}
_DOTS1_UNSAID = {
    **_BALANCED_UNSAID,
    "max_position_embeddings": 2048,
    "first_k_dense_replace": 0,
    "max_window_layers": 62,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "num_key_value_heads": 32,
    "routed_scaling_factor": 1.0,
    "sliding_window": 4096,
}
_EXAONE_MOE_UNSAID = {
    **_BALANCED_UNSAID,
    "max_position_embeddings": 2048,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 32,
    "num_shared_experts": 1,
    "rms_norm_eps": 1e-5,
    "routed_scaling_factor": 2.5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
# which layers have experts, and how these are scored, must be as in the published models; keys
# that transformers reads but does not apply must not ask for anything
_V2_NEUTRAL = {
    "moe_layer_freq": (None, 1),
    "norm_topk_prob": (None, False),
    "scoring_func": (None, "softmax"),
}
_BALANCED_NEUTRAL = {
    "moe_layer_freq": (None, 1),
    "scoring_func": (None, "sigmoid"),
    "topk_method": (None, "noaux_tc"),
}
# of which transformers would always make one dense layer
_LITE_NEUTRAL = {**_BALANCED_NEUTRAL, "first_k_dense_replace": (None, 1)}
_DOTS1_NEUTRAL = {**_BALANCED_NEUTRAL, "scoring_func": (None, "sigmoid", "noaux_tc")}

DEEPSEEKS = {
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM", _deepseek_v2, _V2_UNSAID, neutral=_V2_NEUTRAL
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM", _deepseek_v3, _V3_UNSAID, neutral=_BALANCED_NEUTRAL
    ),
    "kimi_k2": Family(
        "DeepseekV3ForCausalLM", _deepseek_v3, _V3_UNSAID, neutral=_BALANCED_NEUTRAL
    ),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM", _glm4_moe, _GLM4_MOE_UNSAID, neutral=_BALANCED_NEUTRAL
    ),
    "glm4_moe_lite": Family(
        "Glm4MoeLiteForCausalLM", _glm4_moe_lite, _GLM4_MOE_LITE_UNSAID, neutral=_LITE_NEUTRAL
    ),
    "exaone_moe": Family(
        "ExaoneMoeForCausalLM",
        _exaone_moe,
        _EXAONE_MOE_UNSAID,
        neutral=_BALANCED_NEUTRAL,
        also="ExaoneMoEForCausalLM",
    ),
    "dots1": Family("Dots1ForCausalLM", _dots1, _DOTS1_UNSAID, neutral=_DOTS1_NEUTRAL),
}
