"""The families with experts, each described by how it differs from Llama."""

from collections.abc import Mapping
from typing import Any

from engine.models.deepseek_families import DEEPSEEKS
from engine.models.family import FULL, SLIDING, Family, Raw, every, llama, routing, windows
from engine.models.mistral_families import MISTRAL_MIXTURES

MXFP4 = "mxfp4"
GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _mixtral(raw: Raw) -> dict[str, Any]:
    choice = routing(raw, normalised=True)
    names = {"block": "block_sparse_moe", "parts": ("w1", "w3", "w2")}
    return {
        **windows({**raw, "layer_types": None}),
        "experts": {"routing": choice, "width": raw["intermediate_size"], **names},
        "sparse": [True] * raw["num_hidden_layers"],
    }


def _qwen_moe(raw: Raw) -> dict[str, Any]:
    """Experts in every `decoder_sparse_step`-th layer, except in `mlp_only_layers`."""
    dense, step = raw.get("mlp_only_layers") or (), raw["decoder_sparse_step"]
    layers = range(raw["num_hidden_layers"])
    return {
        "experts": {
            "routing": routing(raw, normalised=raw["norm_topk_prob"]),
            "width": raw["moe_intermediate_size"],
        },
        "sparse": [at not in dense and (at + 1) % step == 0 for at in layers],
    }


def qwen_experts(raw: Raw) -> dict[str, Any]:
    """As above, and one more expert that gets every token, weighted by a gate."""
    different = _qwen_moe(raw)
    different["experts"]["shared"] = {
        "name": "shared_expert",
        "width": raw["shared_expert_intermediate_size"],
        "gate": "shared_expert_gate",
    }
    return different


def _qwen2_moe(raw: Raw) -> dict[str, Any]:
    different, layers = qwen_experts(raw), range(raw["num_hidden_layers"])
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


def _minimax_m2(raw: Raw) -> dict[str, Any]:
    if {*(raw.get("attn_type_list") or ())} - {1}:
        raise ValueError(f"attn_type_list {raw['attn_type_list']} is not supported")
    experts = {
        "routing": routing(raw, normalised=True, scoring="sigmoid"),
        "width": raw["intermediate_size"],
        "block": "block_sparse_moe",
        "parts": ("w1", "w3", "w2"),
        "correction": "e_score_correction_bias",
    }
    sparse = [True] * raw["num_hidden_layers"]
    return {"experts": experts, "sparse": sparse, "qk_norm": "all", "partial_rotary": True}


def _minimax_m2_today(raw: Raw) -> Raw:
    """Today's spelling: published configs say how many dimensions turn, not their share."""
    if raw.get("rotary_dim") is None:
        return raw
    return {"partial_rotary_factor": raw["rotary_dim"] / raw["head_dim"], **raw}


def _olmoe(raw: Raw) -> dict[str, Any]:
    experts = {
        "routing": routing(raw, normalised=raw["norm_topk_prob"]),
        "width": raw["intermediate_size"],
    }
    sparse = [True] * raw["num_hidden_layers"]
    biases = llama({**raw, "mlp_bias": False})
    return {**biases, "qk_norm": "all", "experts": experts, "sparse": sparse}


def _ernie_moe(raw: Raw) -> dict[str, Any]:
    """Experts in every `moe_layer_interval`-th layer, from a first one to a last one."""
    first, last = raw["moe_layer_start_index"], raw["moe_layer_end_index"]
    step, layers = raw["moe_layer_interval"], range(raw["num_hidden_layers"])
    width, always = raw["moe_intermediate_size"], raw["moe_num_shared_experts"]
    return {
        "rope_interleaved": True,
        "experts": {
            "routing": routing(raw, normalised=True),
            "width": width,
            "correction": "moe_statics.e_score_correction_bias",
            "shared": {"name": "shared_experts", "width": width * always} if always else None,
        },
        "sparse": [
            (at + 1) % step == 0 and first <= at <= (layers[-1] if last == -1 else last)
            for at in layers
        ],
        "unused_names": ("model.mtp_",),
    }


def _ernie_moe_today(raw: Raw) -> Raw:
    names = {"moe_num_experts": "num_experts", "moe_k": "num_experts_per_tok"}
    return {**{ours: raw[theirs] for theirs, ours in names.items()}, **raw}


def _gpt_oss(raw: Raw) -> dict[str, Any]:
    bias = raw["attention_bias"]
    experts = {
        "routing": routing(raw, normalised=True),
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


_QWEN_UNSAID = {
    "max_position_embeddings": 32_768,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "sliding_window": 4096,
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
_MINIMAX_M2_UNSAID = {
    "head_dim": 128,
    "max_position_embeddings": 196_608,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "rope_theta": 5_000_000.0,
}
_OLMOE_UNSAID = {
    "max_position_embeddings": 4096,
    "norm_topk_prob": False,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-5,
}
_ERNIE_MOE_UNSAID = {
    "max_position_embeddings": 131_072,
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}
_MINIMAX_M2_NEUTRAL = {
    "qk_norm_type": (None, "per_layer"),
    "scoring_func": (None, "sigmoid"),
    "shared_intermediate_size": (None, 0),
    "use_qk_norm": (None, True),
    "use_routing_bias": (None, True),
}
_OLMOE_NEUTRAL = {"clip_qkv": (None,)}
_ERNIE_MOE_NEUTRAL = {"moe_norm_min": (None, 1e-12), "use_bias": (None, False)}
_GPT_OSS_NEUTRAL = {"hidden_act": (None, "silu")}  # ignored: it has its own activation

MIXTURES = {
    "mixtral": Family("MixtralForCausalLM", _mixtral, _MIXTRAL_UNSAID),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", _qwen2_moe, _QWEN2_MOE_UNSAID),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", _qwen3_moe, _QWEN3_MOE_UNSAID),
    "gpt_oss": Family(
        "GptOssForCausalLM", _gpt_oss, _GPT_OSS_UNSAID, _gpt_oss_today, _GPT_OSS_NEUTRAL
    ),
    **DEEPSEEKS,
    **MISTRAL_MIXTURES,
    "minimax_m2": Family(
        "MiniMaxM2ForCausalLM",
        _minimax_m2,
        _MINIMAX_M2_UNSAID,
        _minimax_m2_today,
        _MINIMAX_M2_NEUTRAL,
    ),
    "olmoe": Family("OlmoeForCausalLM", _olmoe, _OLMOE_UNSAID, neutral=_OLMOE_NEUTRAL),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        _ernie_moe,
        _ERNIE_MOE_UNSAID,
        _ernie_moe_today,
        _ERNIE_MOE_NEUTRAL,
    ),
}
