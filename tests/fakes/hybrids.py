"""What configs of models that keep a state may ask for, case by case."""

from dataclasses import replace
from math import inf

from tests.fakes.checkpoints import FAMILY_SHAPE, SHAPE
from tests.fakes.families import TYPED_YARN, Case, rope
from tests.fakes.hybrid_shapes import HALF_TURNS

TIED = {"tie_word_embeddings": True}
YARN = {"rope_parameters": {**HALF_TURNS, **TYPED_YARN}}
EACH = {"linear_num_key_heads": 4, "linear_num_value_heads": 4}  # nothing is shared
LARGE = {"linear_num_value_heads": 8, "linear_key_head_dim": 20, "linear_value_head_dim": 24}
OLD_TURNS = {"layer_types": ["mamba", "attention", "mamba", "mamba"]}
DENSE = {"num_local_experts": 0, "num_experts_per_tok": 0}
ROTATED = {"position_embedding_type": "rope"}
NOPE = {"position_embedding_type": "nope"}
ATTENDING = {"layer_types": ["full_attention"] * 4}
EVERY_BIAS = {"attention_bias": True, "mamba_proj_bias": True}
NO_BIAS = {"mamba_conv_bias": False}
LARGE_MAMBA = {"mamba_d_state": 20, "mamba_expand": 3}
EVERY_SECOND = {"layer_types": None, "full_attention_interval": 2}


def text(family: str, **changes: object) -> dict[str, object]:
    """A text config in which some keys are others; those that are None are left out."""
    given = {**SHAPE, **FAMILY_SHAPE[family], "model_type": f"{family}_text", **changes}
    return {"text_config": {key: one for key, one in given.items() if one is not None}}


_CASES = [
    Case("a key head for each value head", "qwen3_next", EACH),
    Case("states larger than a block", "qwen3_next", LARGE, block_size=5),
    Case("convolution over two tokens", "qwen3_next", {"linear_conv_kernel_dim": 2}),
    Case("layer types unsaid", "qwen3_next", {"layer_types": None}),
    Case("every second layer attends", "qwen3_next", EVERY_SECOND, EVERY_SECOND),
    Case("weights that do not add up to one", "qwen3_next", {"norm_topk_prob": False}),
    Case("experts in every second layer", "qwen3_next", {"decoder_sparse_step": 2}),
    Case("dense layers named, tied", "qwen3_next", {"mlp_only_layers": [0, 1], **TIED}),
    Case("a key head for each value head", "qwen3_5_text", EACH, block_size=7),
    Case("states larger than a block", "qwen3_5_text", LARGE),
    Case(
        "layers with a state only behind the first",
        "qwen3_5_text",
        {"layer_types": ["full_attention", *["linear_attention"] * 3]},
    ),
    Case("no layer with a state", "qwen3_5_text", {"layer_types": ["full_attention"] * 4}),
    Case("biases, tied", "qwen3_5_text", {"attention_bias": True, **TIED}),
    Case("convolution over eight tokens", "qwen3_5_text", {"linear_conv_kernel_dim": 8}),
    Case("yarn", "qwen3_5_text", YARN, block_size=5),
    Case("two states to a block", "qwen3_5_text", block_size=32),
    Case("a key head for each value head", "qwen3_5_moe_text", EACH, block_size=5),
    Case("one expert each", "qwen3_5_moe_text", {"num_experts_per_tok": 1}),
    Case("tied", "qwen3_5", TIED, block_size=5),
    Case(
        "every second layer attends", "qwen3_5", EVERY_SECOND, text("qwen3_5", **EVERY_SECOND)
    ),
    Case("states larger than a block", "qwen3_5_moe", LARGE, block_size=7),
]
# what is read of a small state is small, and normed with its error: transformers itself is up
# to 5e-4 from float64 with most of these, and 8e-3 with some other widths
_CASES = [replace(one, error=3e-3) for one in _CASES]
_MAMBA_CASES = [
    Case("dense", "granitemoehybrid", DENSE, block_size=5),
    Case("rotated", "granitemoehybrid", ROTATED),
    Case("rotated, yarn", "granitemoehybrid", {**ROTATED, **rope(**TYPED_YARN)}),
    Case("layer types and positions of old", "granitemoehybrid", edits={**OLD_TURNS, **NOPE}),
    Case("no layer with a state, dense", "granitemoehybrid", {**ATTENDING, **DENSE, **ROTATED}),
    Case("no layer with a state", "granitemoehybrid", ATTENDING, block_size=7),
    Case("one group", "granitemoehybrid", {"mamba_n_groups": 1}),
    Case("a group for each head", "granitemoehybrid", {"mamba_n_groups": 4}, block_size=7),
    Case("states larger than a block", "granitemoehybrid", LARGE_MAMBA, block_size=5),
    Case("convolution over two tokens", "granitemoehybrid", {"mamba_d_conv": 2}),
    Case("biases, tied", "granitemoehybrid", {**EVERY_BIAS, **TIED}),
    Case("no bias of the convolution", "granitemoehybrid", NO_BIAS),
    Case("steps without a limit", "granitemoehybrid", edits={"time_step_limit": [0.0, inf]}),
    Case("limit of steps unsaid", "granitemoehybrid", edits={"time_step_limit": None}),
    Case("one expert each", "granitemoehybrid", {"num_experts_per_tok": 1}),
    Case("three layers attend", "bamba", {"attn_layer_indices": [0, 2, 3]}, block_size=7),
    Case("rotated dimensions named", "bamba", edits={"attn_rotary_emb": 4}),
    Case("rope of old", "bamba", edits={"rope_parameters": None, "rope_theta": 1000.0}),
    Case("one group", "bamba", {"mamba_n_groups": 1}, {"mamba_d_head": "auto"}),
    Case("states larger than a block", "bamba", LARGE_MAMBA, block_size=5),
    Case("biases, tied", "bamba", {**EVERY_BIAS, **TIED, "mlp_bias": True}),
    Case("no bias of the convolution", "bamba", NO_BIAS),
]
MULTIPLIED = [name for name in FAMILY_SHAPE["falcon_h1"] if "multiplier" in name]
EVERY_FALCON_BIAS = {**EVERY_BIAS, "projectors_bias": True, "mlp_bias": True}
OUTWARD_BIAS = {"projectors_bias": True}
NORMED = {"mamba_rms_norm": True, "mamba_norm_before_gate": False}
LARGE_FALCON = {"mamba_d_state": 20, "mamba_d_ssm": 96}
_FALCON_CASES = [
    Case("multipliers unsaid", "falcon_h1", edits=dict.fromkeys(MULTIPLIED)),
    Case("what is read is normed", "falcon_h1", NORMED, block_size=5),
    Case("what is read is normed, one group", "falcon_h1", {**NORMED, "mamba_n_groups": 1}),
    Case("a group for each head", "falcon_h1", {"mamba_n_groups": 4}, block_size=7),
    Case("as wide as mamba_expand says", "falcon_h1", {"mamba_d_ssm": None}),
    Case("states larger than a block", "falcon_h1", LARGE_FALCON, block_size=5),
    Case("convolution over two tokens", "falcon_h1", {"mamba_d_conv": 2}),
    Case("biases, tied", "falcon_h1", {**EVERY_FALCON_BIAS, **NORMED, **TIED}),
    Case("a bias behind states only", "falcon_h1", OUTWARD_BIAS),
    Case("no bias of the convolution", "falcon_h1", NO_BIAS, {"mamba_d_head": "auto"}),
    Case("rope of old", "falcon_h1", edits={"rope_parameters": None, "rope_theta": 1000.0}),
    Case("yarn, wide heads", "falcon_h1", {**rope(**TYPED_YARN), "head_dim": 16}),
]
HYBRID_CASES = [*_CASES, *_MAMBA_CASES, *_FALCON_CASES]
