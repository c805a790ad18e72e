"""What configs of models for text and images may ask for, case by case."""

from tests.fakes.families import TYPED_YARN, Case
from tests.fakes.vision_text_shapes import mrope

TIED = {"tie_word_embeddings": True}
KIMI_NAMED = {"architectures": ["KimiK25ForConditionalGeneration"]}
YARN = mrope(4, 2, 2, mrope_interleaved=True, **TYPED_YARN)

VISION_TEXT_CASES = [
    Case("biases", "qwen3_vl", {"attention_bias": True, "num_key_value_heads": 1}),
    Case("tied", "qwen3_vl", TIED, block_size=5),
    Case("yarn", "qwen3_vl", YARN),
    Case("positions all in one section", "qwen3_vl", mrope(8, 0, 0)),
    Case("every second layer", "qwen3_vl_moe", {"decoder_sparse_step": 2}),
    Case("first layer dense", "qwen3_vl_moe", {"mlp_only_layers": [0]}, block_size=7),
    Case("tied", "qwen3_vl_moe", TIED),
    Case("tied", "kimi_k25", TIED),
    Case("architecture as published", "kimi_k25", edits=KIMI_NAMED),
    Case("groups, two shared", "kimi_k25", {"n_group": 4, "topk_group": 2}, block_size=5),
]
