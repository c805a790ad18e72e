"""config.json files of models with gated short convolutions, as published; see published.py."""

from typing import Any

_ATTENDING = [2, 5, 8, 10, 12, 14]
_EVERY = {
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "eos_token_id": 7,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "max_position_embeddings": 128000,
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "use_cache": True,
    "vocab_size": 65536,
}
_DENSE = {
    **_EVERY,
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "block_out_init_scale": 1.0,
    "block_use_swiglu": True,
    "block_use_xavier_init": True,
    "conv_dim": 2048,
    "conv_use_xavier_init": True,
    "model_type": "lfm2",
    "num_heads": 32,
    "num_hidden_layers": 16,
    "use_pos_enc": True,
}
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "LFM2 1.2B": {
        **_DENSE,
        "block_ff_dim": 12288,
        "conv_dim_out": 2048,
        "full_attn_idxs": _ATTENDING,
        "rope_theta": 1000000.0,
        "torch_dtype": "bfloat16",
    },
    "LFM2.5 1.2B": {
        **_DENSE,
        "dtype": "bfloat16",
        "full_attn_idxs": None,
        "intermediate_size": 12288,
        "layer_types": ["full_attention" if at in _ATTENDING else "conv" for at in range(16)],
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
    },
    "LFM2 8B A1B": {
        **_EVERY,
        "architectures": ["Lfm2MoeForCausalLM"],
        "dtype": "bfloat16",
        "intermediate_size": 7168,
        "layer_types": [
            "full_attention" if at in (2, 6, 10, 14, 18, 21) else "conv" for at in range(24)
        ],
        "model_type": "lfm2_moe",
        "moe_intermediate_size": 1792,
        "norm_topk_prob": True,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "rope_theta": 1000000.0,
        "routed_scaling_factor": 1.0,
        "tie_embedding": True,
        "use_expert_bias": True,
    },
}
