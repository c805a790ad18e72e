"""Sizes of small models for text and images: their text parts, and what is beside these."""

from typing import Any

from tests.fakes.mixture_shapes import BALANCED, EXPERTS


def mrope(*section: int, **settings: object) -> dict[str, object]:
    """A rope of three positions; `section`: how many pairs turn by each."""
    said = {"rope_theta": 1000.0, "rope_type": "default", "mrope_section": list(section)}
    return {"rope_parameters": {**said, **settings}}


HALF = {"rope_type": "default", "partial_rotary_factor": 0.5}
GLM4V = {"hidden_size": 64, "pad_token_id": 0, **mrope(2, 1, 1, **HALF)}
INTERLEAVED = mrope(4, 2, 2, mrope_interleaved=True)
VISION_TEXT_SHAPE: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
        **mrope(1, 1, 2),
    },
    "qwen3_vl": {"head_dim": 16, **INTERLEAVED},
    "qwen3_vl_moe": {**EXPERTS, "num_experts": 8, "head_dim": 16, **INTERLEAVED},
    "kimi_k25": {**BALANCED, "n_group": 1, "topk_group": 1},
    "glm4v": GLM4V,
    "glm46v": GLM4V,
    "glm4v_moe": {
        **EXPERTS,
        "head_dim": 16,
        "n_routed_experts": 8,
        "pad_token_id": 0,
        **mrope(2, 1, 1, **HALF),
    },
}
_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
_QWEN2_VISION = {**_VISION, "out_hidden_size": 32, "fullatt_block_indexes": [0]}
_QWEN3_VISION = {**_VISION, "out_hidden_size": 32, "deepstack_visual_indexes": [0]}
_GLM_VISION = {**_VISION, "image_size": 28, "out_hidden_size": 64}
VISION_PARTS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"vision_config": _QWEN2_VISION},
    "qwen3_vl": {"vision_config": _QWEN3_VISION},
    "qwen3_vl_moe": {"vision_config": _QWEN3_VISION},
    "kimi_k25": {
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        "projection_hidden_size": 16,
        "tie_word_embeddings": False,
    },
    "glm4v": {"vision_config": _GLM_VISION},
    "glm46v": {"vision_config": {**_GLM_VISION, "model_type": "glm4v_vision"}},
    "glm4v_moe": {"vision_config": {**_GLM_VISION, "out_hidden_size": 32}},
}
