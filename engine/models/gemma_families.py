"""Google's Gemma, 1 to 3: norms of 1 + w, scaled embeddings, caps, windows in some layers."""

from typing import Any

from engine.models.family import Family, Raw, every, llama, text_part, windows
from engine.models.rope_config import local_ropes

NORMS = {
    "attention": "input_layernorm",
    "attention_output": "post_attention_layernorm",
    "mlp": "pre_feedforward_layernorm",
    "mlp_output": "post_feedforward_layernorm",
}


def _gemma(raw: Raw) -> dict[str, Any]:
    """Common to all: norms of 1 + w, and embeddings times a scale rounded to their dtype."""
    return {
        **llama(raw),
        "norm_adds_one": True,
        "embedding_scale": raw["hidden_size"] ** 0.5,
        "embedding_scale_rounds": True,
    }


def _gemma1(raw: Raw) -> dict[str, Any]:
    """Gemma 1 configs say gelu and mean its tanh approximation."""
    said = raw.get("hidden_activation") or raw["hidden_act"]
    return {**_gemma(raw), "activation": "gelu_pytorch_tanh" if said == "gelu" else said}


def _gemma2(raw: Raw) -> dict[str, Any]:
    return {
        **_gemma(raw),
        **windows(raw, every(raw, raw["sliding_window_pattern"])),
        "norms": NORMS,
        "attention_scale": raw["query_pre_attn_scalar"] ** -0.5,
        "attention_softcap": raw["attn_logit_softcapping"],
        "logits_softcap": raw["final_logit_softcapping"],
    }


def _gemma3(raw: Raw) -> dict[str, Any]:
    return {**_gemma2(raw), "qk_norm": "head"}


def _gemma3_today(raw: Raw) -> Raw:
    return local_ropes(raw, "rope_local_base_freq")


def _gemma3_text_part(raw: Raw) -> Raw:
    return _gemma3_today(text_part(raw))


_GEMMA_UNSAID = {
    "max_position_embeddings": 8192,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
_GEMMA2_UNSAID = {
    **_GEMMA_UNSAID,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3_UNSAID = {
    **_GEMMA2_UNSAID,
    "max_position_embeddings": 131_072,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
}
_GEMMA3_WHOLE = {  # its text_config may leave out everything that is as in the 2B model
    **_GEMMA3_UNSAID,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
_CAUSAL = {"use_bidirectional_attention": (None, False)}
# transformers reads Gemma 3's cap on scores, but does not apply it
_UNCAPPED = {**_CAUSAL, "attn_logit_softcapping": (None,)}

GEMMAS = {
    "gemma": Family("GemmaForCausalLM", _gemma1, _GEMMA_UNSAID, neutral=_CAUSAL),
    "gemma2": Family("Gemma2ForCausalLM", _gemma2, _GEMMA2_UNSAID, neutral=_CAUSAL),
    "gemma3_text": Family(
        "Gemma3ForCausalLM", _gemma3, _GEMMA3_UNSAID, _gemma3_today, _UNCAPPED, "Gemma3Text"
    ),
    "gemma3": Family(
        "Gemma3ForConditionalGeneration", _gemma3, _GEMMA3_WHOLE, _gemma3_text_part, _UNCAPPED
    ),
}
