"""The dense families, each described by how it differs from Llama."""

from typing import Any

from engine.models.family import (
    FULL,
    SLIDING,
    Family,
    Raw,
    every,
    llama,
    windows,
)
from engine.models.gemma_families import GEMMAS
from engine.models.mistral_families import MISTRALS
from engine.models.rope_config import local_ropes

POST_NORMS = {
    "attention": None,
    "attention_output": "post_attention_layernorm",
    "mlp": None,
    "mlp_output": "post_feedforward_layernorm",
}
GLM4_NORMS = {
    "attention": "input_layernorm",
    "attention_output": "post_self_attn_layernorm",
    "mlp": "post_attention_layernorm",
    "mlp_output": "post_mlp_layernorm",
}
GATE_UP = {"inward": ("gate_up_proj",)}


def _qwen2(raw: Raw) -> dict[str, Any]:
    return {"qkv_bias": True, **_qwen_windows(raw)}


def _qwen3(raw: Raw) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias, "qk_norm": "head", **_qwen_windows(raw)}


def _qwen_windows(raw: Raw) -> dict[str, Any]:
    if not raw.get("use_sliding_window", False):
        return {}
    layers, first = raw["num_hidden_layers"], raw["max_window_layers"]
    return windows(raw, [SLIDING if at >= first else FULL for at in range(layers)])


def _phi3(raw: Raw) -> dict[str, Any]:
    fused = {"fused_qkv": True, "mlp_names": GATE_UP, "partial_rotary": True}
    return {**fused, **windows({**raw, "layer_types": None})}


def _phi3_today(raw: Raw) -> Raw:
    """Today's spelling: longrope used to be called su, or even yarn."""
    scaling = dict(raw.get("rope_scaling") or raw.get("rope_parameters") or {})
    if scaling.get("rope_type", scaling.get("type")) in ("su", "yarn"):
        scaling["rope_type"] = "longrope"
    return {**raw, "rope_parameters": scaling, "rope_scaling": None}


def granite(raw: Raw) -> dict[str, Any]:
    """Some of its outputs are multiplied by constants."""
    return {
        **llama(raw),
        "embedding_scale": raw["embedding_multiplier"],
        "residual_scale": raw["residual_multiplier"],
        "attention_scale": raw["attention_multiplier"],
        "logits_scale": 1 / raw["logits_scaling"],
    }


def _smollm3(raw: Raw) -> dict[str, Any]:
    layers, interval = raw["num_hidden_layers"], raw["no_rope_layer_interval"]
    rotated = raw.get("no_rope_layers") or [(at + 1) % interval != 0 for at in range(layers)]
    rotated = [bool(one) for one in rotated[:layers]]
    different = {**llama(raw), "rotated": rotated}
    if raw.get("use_sliding_window", False) and raw["sliding_window"] is not None:
        different |= windows(raw, [FULL if one else SLIDING for one in rotated])
    return different


def _olmo2(raw: Raw) -> dict[str, Any]:
    return {**llama({**raw, "mlp_bias": False}), "norms": POST_NORMS, "qk_norm": "all"}


def _olmo3(raw: Raw) -> dict[str, Any]:
    return {**_olmo2(raw), **windows(raw, every(raw, 4))}


def _olmo3_today(raw: Raw) -> Raw:
    return local_ropes(raw, "rope_theta")


def _glm(raw: Raw) -> dict[str, Any]:
    return {
        "qkv_bias": raw["attention_bias"],
        "mlp_names": GATE_UP,
        "rope_interleaved": True,
        "partial_rotary": True,
    }


def _glm4(raw: Raw) -> dict[str, Any]:
    return {**_glm(raw), "norms": GLM4_NORMS}


def _ernie(raw: Raw) -> dict[str, Any]:
    bias = raw.get("use_bias", False)
    biases = {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bias}
    return {**biases, "rope_interleaved": True}


def _helium(raw: Raw) -> dict[str, Any]:
    return {**llama(raw), "output_bias": False, "rope_interleaved": True}


def _seed_oss(raw: Raw) -> dict[str, Any]:
    return {**llama(raw), "output_bias": raw.get("attention_out_bias", False)}


def _exaone4(raw: Raw) -> dict[str, Any]:
    """If layers have windows, only these layers have rotary embedding.

    The pattern of published configs that name their layers is a word: LLLG.
    """
    different = {"norms": POST_NORMS, "qk_norm": "head"}
    if raw["sliding_window"] is None:
        return different
    kinds = raw.get("layer_types") or every(raw, raw["sliding_window_pattern"] or 0)
    rotated = [kind == SLIDING for kind in kinds]
    return {**different, **windows(raw, kinds), "rotated": rotated}


_QWEN_UNSAID = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_PHI3_UNSAID = {
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
_GRANITE_UNSAID = {
    "max_position_embeddings": 2048,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
}
_SMOLLM3_UNSAID = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "rope_theta": 2_000_000.0,
    "no_rope_layer_interval": 4,
    "sliding_window": None,
}
_OLMO2_UNSAID = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
_OLMO3_UNSAID = {**_OLMO2_UNSAID, "rope_theta": 500_000.0, "sliding_window": 4096}
_GLM_UNSAID = {
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1.5625e-7,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
_ERNIE_UNSAID = {
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}
_HELIUM_UNSAID = {
    "max_position_embeddings": 4096,
    "num_key_value_heads": 20,
    "head_dim": 128,
    "rms_norm_eps": 1e-8,
    "rope_theta": 100_000.0,
}
_SEED_OSS_UNSAID = {
    "max_position_embeddings": 524_288,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": True,
}
_EXAONE4_UNSAID = {
    "max_position_embeddings": 2048,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}
DENSE = {
    "llama": Family("LlamaForCausalLM", llama, {"max_position_embeddings": 2048}),
    **MISTRALS,
    "qwen2": Family("Qwen2ForCausalLM", _qwen2, _QWEN_UNSAID),
    "qwen3": Family("Qwen3ForCausalLM", _qwen3, {**_QWEN_UNSAID, "head_dim": 128}),
    "phi3": Family("Phi3ForCausalLM", _phi3, _PHI3_UNSAID, _phi3_today),
    **GEMMAS,
    "granite": Family("GraniteForCausalLM", granite, _GRANITE_UNSAID),
    "smollm3": Family("SmolLM3ForCausalLM", _smollm3, _SMOLLM3_UNSAID),
    "olmo2": Family("Olmo2ForCausalLM", _olmo2, _OLMO2_UNSAID),
    "olmo3": Family("Olmo3ForCausalLM", _olmo3, _OLMO3_UNSAID, _olmo3_today),
    "glm": Family("GlmForCausalLM", _glm, _GLM_UNSAID),
    "glm4": Family("Glm4ForCausalLM", _glm4, _GLM_UNSAID),
    "ernie4_5": Family(
        "Ernie4_5ForCausalLM", _ernie, _ERNIE_UNSAID, also="Ernie4_5_ForCausalLM"
    ),
    "helium": Family("HeliumForCausalLM", _helium, _HELIUM_UNSAID),
    "seed_oss": Family("SeedOssForCausalLM", _seed_oss, _SEED_OSS_UNSAID),
    "exaone4": Family("Exaone4ForCausalLM", _exaone4, _EXAONE4_UNSAID),
}
