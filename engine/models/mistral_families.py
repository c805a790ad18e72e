"""Mistral's families: dense ones with or without windows, and one with experts over latents."""

from typing import Any

from engine.models.deepseek_families import groups_of, latents, leading_dense
from engine.models.family import Family, Raw, routing, text_part, windows
from engine.models.rope_config import query_scaling, said_of_rope


def _mistral(raw: Raw) -> dict[str, Any]:
    """Layers that have types were first published as Mistral's, then as Ministral's."""
    return windows(raw)


def _ministral3(raw: Raw) -> dict[str, Any]:
    return {**windows({**raw, "layer_types": None}), "query_scaling": query_scaling(raw)}


def _mistral4(raw: Raw) -> dict[str, Any]:
    """DeepSeek's layers, whose experts are scored against one another."""
    different = {**latents(raw), **leading_dense(raw)}
    different["experts"]["routing"] = routing(
        raw,
        normalised=raw["norm_topk_prob"],
        scale=raw["routed_scaling_factor"],
        groups=groups_of(raw),
    )
    turns = {"rope_interleaved": raw["rope_interleave"], "query_scaling": query_scaling(raw)}
    return {**different, **turns}


def _ministral3_today(raw: Raw) -> Raw:
    return _with_rope(raw, factor=16.0, trained=16_384, theta=1e6)


def _mistral4_today(raw: Raw) -> Raw:
    """Configs say which share of a whole head turns; our heads are the turned part alone."""
    raw = _with_rope(raw, factor=128.0, trained=8192, theta=1e4)
    rope = dict(said_of_rope(raw))
    turned, plain = raw["qk_rope_head_dim"], raw["qk_nope_head_dim"]
    share = rope.pop("partial_rotary_factor", None)
    if share is not None and int((plain + turned) * share) != turned:
        raise ValueError(
            f"partial_rotary_factor {share} is not the share of qk_rope_head_dim {turned} "
            f"beside qk_nope_head_dim {plain}"
        )
    return {**raw, "rope_parameters": rope}


def _with_rope(raw: Raw, *, factor: float, trained: int, theta: float) -> Raw:
    """With the rope that a config means which names none."""
    if raw.get("rope_parameters") or raw.get("rope_scaling"):
        return raw
    rope = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": trained,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    return {**raw, "rope_parameters": rope}


def _mistral3_today(raw: Raw) -> Raw:
    """The text part, with what its own family leaves unsaid."""
    text = text_part({**raw, "model_type": "mistral"})
    own = _TEXTS.get(text["model_type"])
    return text if own is None else own.today({**own.unsaid, **text})


def _mistral3(raw: Raw) -> dict[str, Any]:
    return _TEXTS[raw["model_type"]].differs({**raw, "layer_types": None})


_MISTRAL_UNSAID = {
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
_MINISTRAL3_UNSAID = {
    "max_position_embeddings": 262_144,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
_MISTRAL4_UNSAID = {
    "attention_bias": False,
    "first_k_dense_replace": 0,
    "kv_lora_rank": 256,
    "max_position_embeddings": 1_048_576,
    "moe_intermediate_size": 2048,
    "n_group": 1,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 4,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "rope_interleave": True,
    "routed_scaling_factor": 1.0,
    "topk_group": 1,
    "v_head_dim": 128,
}
MISTRAL_MIXTURES = {
    "mistral4": Family("Mistral4ForCausalLM", _mistral4, _MISTRAL4_UNSAID, _mistral4_today),
}
_TEXTS = {
    **MISTRAL_MIXTURES,
    "mistral": Family("MistralForCausalLM", _mistral, _MISTRAL_UNSAID),
    "ministral3": Family(
        "Ministral3ForCausalLM", _ministral3, _MINISTRAL3_UNSAID, _ministral3_today
    ),
}
MISTRALS = {
    "mistral": _TEXTS["mistral"],
    "ministral3": _TEXTS["ministral3"],
    "ministral": Family("MinistralForCausalLM", _mistral, _MISTRAL_UNSAID),
    "mistral3": Family(
        "Mistral3ForConditionalGeneration",
        _mistral3,
        {"tie_word_embeddings": True},
        _mistral3_today,
        {"model_type": tuple(_TEXTS)},
    ),
}
