"""Sizes of small models of Gemma 4; the rest is as in checkpoints.py."""

from typing import Any

LOCAL, GLOBAL = "sliding_attention", "full_attention"
ROPES = {
    LOCAL: {"rope_type": "default", "rope_theta": 100.0},
    GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000.0},
}
GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 20,
    "rope_parameters": ROPES,
    "pad_token_id": 0,
    "vocab_size_per_layer_input": 384,
}
SMALL = {  # as the small ones: an input of each layer's own, and shared KV
    **GEMMA4,
    "num_hidden_layers": 6,
    "layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL, GLOBAL],
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
LARGE = {  # as the large ones: keys are values, and experts
    **GEMMA4,
    "num_hidden_layers": 4,
    "layer_types": [LOCAL, LOCAL, LOCAL, GLOBAL],
    "hidden_size_per_layer_input": 0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
    "final_logit_softcapping": 9.0,
}
GEMMA4_SHAPE: dict[str, dict[str, Any]] = {"gemma4_text": SMALL, "gemma4": LARGE}
GEMMA4_VISION = {
    "gemma4": {
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "patch_size": 14,
        },
        "audio_config": None,
    }
}
