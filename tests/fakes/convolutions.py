"""What configs of models with gated short convolutions may ask for, case by case."""

from typing import Any

from tests.fakes.families import Case

TIED = {"tie_word_embeddings": True}
ATTENDING = {"layer_types": ["full_attention"] * 4}
COUNTED = {"layer_types": None, "full_attn_idxs": [1]}
OF_OLD: dict[str, Any] = {
    **COUNTED,
    "block_ff_dim": 48,
    "intermediate_size": None,
    "rope_parameters": None,
    "rope_theta": 1000.0,
    "tie_embedding": True,
    "tie_word_embeddings": None,
}
AS_IT_IS = {"block_auto_adjust_ff_dim": False}
LARGE = {"conv_L_cache": 40}
ONLY_BEHIND = {"layer_types": ["full_attention", "conv", "conv", "conv"]}
HALVES = {"routed_scaling_factor": 0.5, "norm_topk_prob": False}
CONVOLUTION_CASES = [
    Case("spelled of old", "lfm2", TIED, OF_OLD, block_size=5),
    Case("all layers attend, unsaid", "lfm2", ATTENDING, {"layer_types": None}),
    Case("convolutions only behind the first", "lfm2", ONLY_BEHIND, block_size=7),
    Case("biases, tied", "lfm2", {"conv_bias": True, **TIED}),
    Case("convolution over two tokens", "lfm2", {"conv_L_cache": 2}),
    Case("convolution over three tokens", "lfm2", {"conv_L_cache": 3}, block_size=5),
    Case("states larger than a block", "lfm2", LARGE, block_size=5),
    Case("MLP as wide as said", "lfm2", AS_IT_IS),
    Case("MLP half as wide again", "lfm2", {"block_ffn_dim_multiplier": 1.5}),
    Case("head dim, one kv head", "lfm2", {"head_dim": 16, "num_key_value_heads": 1}),
    Case("no layer with a state", "lfm2_moe", ATTENDING, block_size=7),
    Case("no dense layer", "lfm2_moe", {"num_dense_layers": 0, "conv_bias": True}),
    Case("no layer with experts", "lfm2_moe", {"num_dense_layers": 4, **TIED}),
    Case("no bias of experts", "lfm2_moe", {"use_expert_bias": False}),
    Case("one expert each", "lfm2_moe", {"num_experts_per_tok": 1}),
    Case("half of weights that do not add up to one", "lfm2_moe", HALVES),
    Case("convolution over three tokens", "lfm2_moe", {"conv_L_cache": 3}),
    Case("states larger than a block", "lfm2_moe", LARGE, block_size=5),
]
