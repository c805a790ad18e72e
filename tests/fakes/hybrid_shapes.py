"""Sizes of small models in which most layers keep a state; the rest is as in checkpoints.py."""

from typing import Any

from tests.fakes.mixture_shapes import EXPERTS

HALF_TURNS = {
    "rope_type": "default",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [2, 1, 1],
}
# here and below: blocks of 16 tokens hold one layer's state in float32, none in half precision
HYBRID = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": [
        "linear_attention",
        "full_attention",
        "linear_attention",
        "linear_attention",
    ],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "rope_parameters": HALF_TURNS,
}
HYBRID_MIXTURE = {
    **HYBRID,
    **EXPERTS,
    "num_experts": 8,
    "shared_expert_intermediate_size": 40,
}
MAMBA = {
    "num_hidden_layers": 4,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 4,
    "pad_token_id": 0,
}
GRANITE_HYBRID = {
    **MAMBA,
    "layer_types": HYBRID["layer_types"],
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
    "logits_scaling": 3.0,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 40,
}
FALCON_H1 = {
    **MAMBA,
    "num_hidden_layers": 3,
    "mamba_d_ssm": 64,
    "mamba_d_state": 16,
    "mamba_expand": 3,  # counts where there is no mamba_d_ssm
    "key_multiplier": 0.7,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.6,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_in_multiplier": 1.25,
    "ssm_out_multiplier": 0.8,
    "ssm_multipliers": [0.6, 1.5, 0.8, 1.3, 1.1],
    "mlp_multipliers": [0.9, 0.7],
}
TURNS = {  # of thirty layers, which these families refuse to mean by silence
    "granitemoehybrid": ["mamba", "attention"] * 15,
    "lfm2_moe": ["conv", "full_attention"] * 15,
}
HYBRID_SHAPE: dict[str, dict[str, Any]] = {
    "qwen3_next": HYBRID_MIXTURE,
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe_text": HYBRID_MIXTURE,
    "qwen3_5": HYBRID,
    "qwen3_5_moe": HYBRID_MIXTURE,
    "granitemoehybrid": GRANITE_HYBRID,
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": FALCON_H1,
}
_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
HYBRID_VISION: dict[str, dict[str, Any]] = {
    name: {"vision_config": {**_VISION, "out_hidden_size": 32}}
    for name in ("qwen3_5", "qwen3_5_moe")
}
