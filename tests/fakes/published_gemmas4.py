"""config.json files of Gemma 4 as they were published, as far as they say how to compute."""

from typing import Any

LOCAL, GLOBAL = "sliding_attention", "full_attention"
COMMON: dict[str, Any] = {
    "attention_bias": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "model_type": "gemma4_text",
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        LOCAL: {"rope_theta": 10000.0, "rope_type": "default"},
        GLOBAL: {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
    },
    "tie_word_embeddings": True,
    "use_bidirectional_attention": "vision",
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}


def _whole(**text: object) -> dict[str, Any]:
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "model_type": "gemma4",
        "text_config": {**COMMON, **text},
        "tie_word_embeddings": True,
        "vision_config": {"model_type": "gemma4_vision", "num_hidden_layers": 27},
    }


GEMMAS4: dict[str, dict[str, Any]] = {
    "Gemma 4 E2B": _whole(
        attention_k_eq_v=False,
        hidden_size=1536,
        hidden_size_per_layer_input=256,
        intermediate_size=6144,
        layer_types=([LOCAL] * 4 + [GLOBAL]) * 7,
        max_position_embeddings=131072,
        num_attention_heads=8,
        num_global_key_value_heads=None,
        num_hidden_layers=35,
        num_key_value_heads=1,
        num_kv_shared_layers=20,
        sliding_window=512,
        use_double_wide_mlp=True,
    ),
    "Gemma 4 31B": _whole(
        attention_k_eq_v=True,
        hidden_size=5376,
        hidden_size_per_layer_input=0,
        intermediate_size=21504,
        layer_types=([LOCAL] * 5 + [GLOBAL]) * 10,
        max_position_embeddings=262144,
        num_attention_heads=32,
        num_global_key_value_heads=4,
        num_hidden_layers=60,
        num_key_value_heads=16,
        num_kv_shared_layers=0,
        sliding_window=1024,
    ),
    "Gemma 4 26B A4B": _whole(
        attention_k_eq_v=True,
        enable_moe_block=True,
        hidden_size=2816,
        hidden_size_per_layer_input=0,
        intermediate_size=2112,
        layer_types=([LOCAL] * 5 + [GLOBAL]) * 5,
        max_position_embeddings=262144,
        moe_intermediate_size=704,
        num_attention_heads=16,
        num_experts=128,
        num_global_key_value_heads=2,
        num_hidden_layers=30,
        num_key_value_heads=8,
        sliding_window=1024,
        top_k_experts=8,
    ),
}
