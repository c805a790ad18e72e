"""The families in which gated delta nets keep a state in most layers, and others attend, as
differences from Llama.

Their layers of multi-token prediction are not loaded.
"""

from collections.abc import Sequence
from typing import Any

from engine.models.family import FULL, LINEAR, Family, Raw
from engine.models.moe_families import qwen_experts

_UNUSED = ("mtp.",)


def _qwen3_5(raw: Raw) -> dict[str, Any]:
    bias = raw["attention_bias"]
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": "head",
        "norm_adds_one": True,
        "gated_attention": True,
        "partial_rotary": True,
        "layer_types": raw.get("layer_types") or _turns(raw),
        "delta": {
            "key_heads": raw["linear_num_key_heads"],
            "value_heads": raw["linear_num_value_heads"],
            "key_width": raw["linear_key_head_dim"],
            "value_width": raw["linear_value_head_dim"],
            "kernel": raw["linear_conv_kernel_dim"],
        },
        "unused_names": _UNUSED,
    }


def _turns(raw: Raw) -> Sequence[str]:
    """Every `full_attention_interval`-th layer attends."""
    period: int = raw["full_attention_interval"]
    return [LINEAR if (at + 1) % period else FULL for at in range(raw["num_hidden_layers"])]


def _qwen3_5_moe(raw: Raw) -> dict[str, Any]:
    """Experts in every layer."""
    given = {"decoder_sparse_step": 1, "norm_topk_prob": True, **raw, "mlp_only_layers": None}
    return {**_qwen3_5(raw), **qwen_experts(given)}


def _qwen3_next(raw: Raw) -> dict[str, Any]:
    different = {**_qwen3_5(raw), **qwen_experts(raw)}
    return {**different, "delta": {**different["delta"], "by_key_head": True}}


_UNSAID = {
    "attention_bias": False,
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32_768,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10_000.0,
}
_QWEN3_5_UNSAID = {**_UNSAID, "num_key_value_heads": 4}
_MOE_UNSAID = {
    **_UNSAID,
    "moe_intermediate_size": 512,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}
_QWEN3_5_MOE_UNSAID = {
    **_MOE_UNSAID,
    "intermediate_size": 512,  # of no layer
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
_QWEN3_NEXT_UNSAID = {
    **_MOE_UNSAID,
    "decoder_sparse_step": 1,
    "intermediate_size": 5632,
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}
_NEUTRAL = {
    "attn_output_gate": (None, True),
    "hidden_act": (None, "silu"),  # the convolution's as well
    "output_gate_type": (None, "silu", "swish"),
}

HYBRIDS = {
    "qwen3_next": Family(
        "Qwen3NextForCausalLM", _qwen3_next, _QWEN3_NEXT_UNSAID, neutral=_NEUTRAL
    ),
    "qwen3_5_text": Family("Qwen3_5ForCausalLM", _qwen3_5, _QWEN3_5_UNSAID, neutral=_NEUTRAL),
    "qwen3_5_moe_text": Family(
        "Qwen3_5MoeForCausalLM",
        _qwen3_5_moe,
        _QWEN3_5_MOE_UNSAID,
        neutral={**_NEUTRAL, "norm_topk_prob": (None, True)},
    ),
}
