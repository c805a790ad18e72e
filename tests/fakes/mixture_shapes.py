"""Sizes of small models with experts, by family: the rest is as in checkpoints.py."""

from typing import Any

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENTS = {
    **EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
BALANCED = {**LATENTS, "q_lora_rank": 20, "n_group": 4, "topk_group": 2}
# queries grow from the trained length on, twice within the longest prompts of the tests
STRETCHED = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.6,
}
MIXTURE_SHAPE: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {**EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 40},
    "qwen3_moe": {**EXPERTS, "num_experts": 8, "head_dim": 16, "norm_topk_prob": True},
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 20,
        "hidden_size": 64,
        "intermediate_size": 32,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
    "deepseek_v2": {**LATENTS, "q_lora_rank": None, "routed_scaling_factor": 1.5},
    "deepseek_v3": BALANCED,
    "kimi_k2": {**BALANCED, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
    "mistral4": {
        **BALANCED,
        "first_k_dense_replace": 0,
        "rope_parameters": {**STRETCHED, "partial_rotary_factor": 0.4},
    },
    "glm4_moe": {
        **EXPERTS,
        "head_dim": 16,
        "n_routed_experts": 8,
        "use_qk_norm": True,
        "pad_token_id": 0,
    },
    "glm4_moe_lite": {**LATENTS, "q_lora_rank": 20, "v_head_dim": 26, "pad_token_id": 0},
    "exaone_moe": {
        **EXPERTS,
        "num_experts": 8,
        "sliding_window": 20,
        "sliding_window_pattern": 2,
    },
    "dots1": {
        **EXPERTS,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "minimax_m2": {
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "head_dim": 16,
        "rotary_dim": 8,
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3, "pad_token_id": 0},
    "ernie4_5_moe": {
        "moe_intermediate_size": 24,
        "moe_num_experts": 8,
        "moe_k": 3,
        "pad_token_id": 0,
    },
}
