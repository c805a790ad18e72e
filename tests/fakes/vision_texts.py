"""What configs of models for text and images may ask for, case by case."""

from typing import Any

from tests.fakes.checkpoints import FAMILY_SHAPE, SHAPE
from tests.fakes.families import TYPED_YARN, Case
from tests.fakes.vision_text_shapes import HALF, mrope

TIED = {"tie_word_embeddings": True}
UNSAID_OUTSIDE = {"tie_word_embeddings": None}
GROUPS = {"n_group": 4, "topk_group": 2}
KIMI_NAMED = {"architectures": ["KimiK25ForConditionalGeneration"]}
YARN = mrope(4, 2, 2, mrope_interleaved=True, **TYPED_YARN)


def old_text(family: str, kind: str, *section: int, **more: object) -> dict[str, Any]:
    """A text's settings whose rope is spelled of old."""
    scaling = {"type": kind, "mrope_section": list(section)}
    settings = {"rope_scaling": scaling, "rope_theta": 5000.0, **more}
    kept = {**SHAPE, **FAMILY_SHAPE[family], **settings}
    return {key: value for key, value in kept.items() if key != "rope_parameters"}


VISION_TEXT_CASES = [
    Case("no window", "qwen2_5_vl", {"use_sliding_window": False}, block_size=5),
    Case("tied by its text config alone", "qwen2_5_vl", TIED, UNSAID_OUTSIDE),
    Case("yarn", "qwen2_5_vl", mrope(1, 1, 2, **TYPED_YARN)),
    Case(
        "without a text config, as published",
        "qwen2_5_vl",
        edits={"text_config": None, **old_text("qwen2_5_vl", "mrope", 1, 1, 2)},
    ),
    Case("biases", "qwen3_vl", {"attention_bias": True, "num_key_value_heads": 1}),
    Case("tied", "qwen3_vl", TIED, block_size=5),
    Case("yarn", "qwen3_vl", YARN),
    Case(
        "rope of old",
        "qwen3_vl",
        edits={"text_config": old_text("qwen3_vl", "default", 4, 2, 2)},
    ),
    Case("every second layer", "qwen3_vl_moe", {"decoder_sparse_step": 2}),
    Case("first layer dense", "qwen3_vl_moe", {"mlp_only_layers": [0]}, block_size=7),
    Case("tied", "qwen3_vl_moe", TIED),
    Case("tied", "kimi_k25", TIED),
    Case("architecture as published", "kimi_k25", edits=KIMI_NAMED),
    Case("groups, two shared", "kimi_k25", {**GROUPS, "n_shared_experts": 2}, block_size=5),
    Case("all of a head turns", "glm4v", mrope(4, 2, 2), block_size=5),
    Case("tied by its text config alone", "glm4v", TIED, UNSAID_OUTSIDE),
    Case(
        "partial rotary of old",
        "glm4v",
        edits={"text_config": old_text("glm4v", "default", 2, 1, 1, partial_rotary_factor=0.5)},
    ),
    Case("tied", "glm46v", TIED, block_size=7),
    Case("no biases", "glm4v_moe", {"attention_bias": False}),
    Case("all of a head turns", "glm4v_moe", mrope(4, 2, 2, partial_rotary_factor=1.0)),
    Case("share that turns unsaid", "glm4v_moe", mrope(2, 1, 1), block_size=5),
    Case("groups, no dense layer", "glm4v_moe", {**GROUPS, "first_k_dense_replace": 0}),
    Case("tied by its text config alone", "glm4v_moe", TIED, UNSAID_OUTSIDE),
    Case("yarn", "glm4v_moe", mrope(2, 1, 1, **{**HALF, **TYPED_YARN})),
]
