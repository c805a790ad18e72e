"""The families with experts, each described by how it differs from Llama."""

import math
from collections.abc import Mapping
from typing import Any

from engine.models.family import FULL, SLIDING, Family, Raw, every, windows

MXFP4 = "mxfp4"
GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _mixtral(raw: Raw) -> dict[str, Any]:
    routing = _routing(raw, normalised=True)
    names = {"block": "block_sparse_moe", "parts": ("w1", "w3", "w2")}
    return {
        **windows({**raw, "layer_types": None}),
        "experts": {"routing": routing, "width": raw["intermediate_size"], **names},
        "sparse": [True] * raw["num_hidden_layers"],
    }


def _qwen_moe(raw: Raw) -> dict[str, Any]:
    """Experts in every `decoder_sparse_step`-th layer, except in `mlp_only_layers`."""
    dense, step = raw.get("mlp_only_layers") or (), raw["decoder_sparse_step"]
    layers = range(raw["num_hidden_layers"])
    return {
        "experts": {
            "routing": _routing(raw, normalised=raw["norm_topk_prob"]),
            "width": raw["moe_intermediate_size"],
        },
        "sparse": [at not in dense and (at + 1) % step == 0 for at in layers],
    }


def _qwen2_moe(raw: Raw) -> dict[str, Any]:
    different, layers = _qwen_moe(raw), range(raw["num_hidden_layers"])
    different["experts"]["shared"] = {
        "name": "shared_expert",
        "width": raw["shared_expert_intermediate_size"],
        "gate": "shared_expert_gate",
    }
    if raw.get("use_sliding_window", False):
        first, turns = raw["max_window_layers"], [SLIDING, FULL]
        kinds = [turns[at % 2] if at < first else FULL for at in layers]
        different |= windows(raw, kinds)
    return {**different, "qkv_bias": raw["qkv_bias"]}


def _qwen3_moe(raw: Raw) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    different = {**_qwen_moe(raw), "qkv_bias": bias, "output_bias": bias, "qk_norm": "head"}
    if raw.get("use_sliding_window", False):
        different |= windows({**raw, "layer_types": None})
    return different


def _gpt_oss(raw: Raw) -> dict[str, Any]:
    bias = raw["attention_bias"]
    experts = {
        "routing": _routing(raw, normalised=True),
        "width": raw["intermediate_size"],
        "router": "router",
        "router_bias": True,
        "stacked_across": True,
        "clamp": {"alpha": raw["swiglu_alpha"], "limit": raw["swiglu_limit"]},
    }
    return {
        **windows(raw, every(raw, 2)),
        "qkv_bias": bias,
        "output_bias": bias,
        "sinks": True,
        "experts": experts,
        "sparse": [True] * raw["num_hidden_layers"],
    }


def _gpt_oss_today(raw: Raw) -> Raw:
    """Today's spelling; MXFP4 is accepted, and any other quantization refused."""
    given = dict(raw)
    if not (raw.get("rope_parameters") or raw.get("rope_scaling")):
        given["rope_parameters"] = GPT_OSS_ROPE
    packed = raw.get("quantization_config")
    if isinstance(packed, Mapping) and packed.get("quant_method") == MXFP4:
        given["quantization_config"] = None
    return given


def _deepseek(raw: Raw) -> dict[str, Any]:
    """Common to V2 and V3: latents, and experts after some dense layers."""
    turned, plain = raw["qk_rope_head_dim"], raw["qk_nope_head_dim"]
    dense, layers = raw["first_k_dense_replace"], range(raw["num_hidden_layers"])
    width, always = raw["moe_intermediate_size"], raw["n_shared_experts"]
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
        "experts": {
            "width": width,
            "shared": {"name": "shared_experts", "width": width * always} if always else None,
        },
        "sparse": [at >= dense for at in layers],
    }


def _deepseek_v2(raw: Raw) -> dict[str, Any]:
    different, method = _deepseek(raw), raw["topk_method"]
    groups = {"count": raw["n_group"], "chosen": raw["topk_group"]}
    if method not in ("greedy", "group_limited_greedy"):
        raise ValueError(f"topk_method {method} is not supported")
    different["experts"]["routing"] = _routing(
        raw,
        normalised=False,
        scale=raw["routed_scaling_factor"],
        groups=groups if method == "group_limited_greedy" else None,
    )
    return {**different, "mlp_bias": raw["mlp_bias"], "rope_interleaved": True}


def _deepseek_v3(raw: Raw) -> dict[str, Any]:
    different = _deepseek(raw)
    different["experts"]["correction"] = True
    different["experts"]["routing"] = _routing(
        raw,
        normalised=raw["norm_topk_prob"],
        scoring="sigmoid",
        scale=raw["routed_scaling_factor"],
        groups={"count": raw["n_group"], "chosen": raw["topk_group"], "judged_by": 2},
    )
    unused = raw["num_nextn_predict_layers"]
    return {**different, "rope_interleaved": raw["rope_interleave"], "unused_layers": unused}


def _stretched(scale: float, raw: Raw) -> float:
    """The attention scale, larger for a rope that is stretched (`mscale_all_dim`)."""
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind, weight = rope.get("rope_type", rope.get("type")), rope.get("mscale_all_dim")
    if kind in (None, "default") or not weight or rope["factor"] <= 1:
        return scale
    more: float = 0.1 * weight * math.log(rope["factor"]) + 1.0
    return scale * more * more


def _routing(raw: Raw, *, normalised: bool, **settings: object) -> dict[str, Any]:
    """The routing; configs name the number of experts in two ways, and DeepSeek in a third."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    said = [raw[name] for name in names if name in raw]
    if not said:
        raise KeyError(" or ".join(names))
    top_k = raw["num_experts_per_tok"]
    return {"num_experts": said[0], "top_k": top_k, "normalised": normalised, **settings}


_QWEN_UNSAID = {
    "max_position_embeddings": 32_768,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "sliding_window": 4096,
}
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
_V3_UNSAID = {
    **_DEEPSEEK_UNSAID,
    "max_position_embeddings": 4096,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 1,
    "rope_interleave": True,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
}
_MIXTRAL_UNSAID = {
    "max_position_embeddings": 131_072,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
}
_QWEN2_MOE_UNSAID = {
    **_QWEN_UNSAID,
    "max_window_layers": 28,
    "moe_intermediate_size": 1408,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 16,
    "qkv_bias": True,
    "shared_expert_intermediate_size": 5632,
}
_QWEN3_MOE_UNSAID = {
    **_QWEN_UNSAID,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
}
_GPT_OSS_UNSAID = {
    "attention_bias": True,
    "head_dim": 64,
    "max_position_embeddings": 131_072,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "sliding_window": 128,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}
# which layers have experts, and how these are scored, must be as in the published models; keys
# that transformers reads but does not apply must not ask for anything
_V2_NEUTRAL = {
    "moe_layer_freq": (None, 1),
    "norm_topk_prob": (None, False),
    "scoring_func": (None, "softmax"),
}
_V3_NEUTRAL = {
    "moe_layer_freq": (None, 1),
    "scoring_func": (None, "sigmoid"),
    "topk_method": (None, "noaux_tc"),
}
_GPT_OSS_NEUTRAL = {"hidden_act": (None, "silu")}  # ignored: it has its own activation

MIXTURES = {
    "mixtral": Family("MixtralForCausalLM", _mixtral, _MIXTRAL_UNSAID),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", _qwen2_moe, _QWEN2_MOE_UNSAID),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", _qwen3_moe, _QWEN3_MOE_UNSAID),
    "gpt_oss": Family(
        "GptOssForCausalLM", _gpt_oss, _GPT_OSS_UNSAID, _gpt_oss_today, _GPT_OSS_NEUTRAL
    ),
    "deepseek_v2": Family(
        "DeepseekV2ForCausalLM", _deepseek_v2, _V2_UNSAID, neutral=_V2_NEUTRAL
    ),
    "deepseek_v3": Family(
        "DeepseekV3ForCausalLM", _deepseek_v3, _V3_UNSAID, neutral=_V3_NEUTRAL
    ),
}
