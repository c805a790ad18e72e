"""What configs of families with experts and latents may ask for, case by case."""

from pathlib import Path
from shutil import copytree

import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.checkpoint import WEIGHTS
from tests.fakes.checkpoints import edit_config
from tests.fakes.convolutions import CONVOLUTION_CASES
from tests.fakes.families import (
    CASES,
    FULL,
    QUARTER,
    SLIDING,
    TYPED_YARN,
    Case,
    old_rope,
    partial,
    rope,
)
from tests.fakes.gemma4_cases import GEMMA4_CASES
from tests.fakes.hybrids import HYBRID_CASES
from tests.fakes.mixers import MIXER_CASES
from tests.fakes.mixture_shapes import STRETCHED
from tests.fakes.vision_texts import VISION_TEXT_CASES

GROUPS = {"n_group": 4, "topk_group": 2}
LIMITED = {"topk_method": "group_limited_greedy", **GROUPS}
SCALED = rope(**TYPED_YARN, mscale=0.9, mscale_all_dim=0.7)
OLD_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
MORE_LAYERS = {"num_hidden_layers": 4}
GROWN = {"rope_parameters": {**STRETCHED, "original_max_position_embeddings": 16}}
DENSE_ONLY = {"first_k_dense_replace": 2}
TIED = {"tie_word_embeddings": True}
PATTERN = {"layer_types": None, "mlp_layer_types": None}
EXAONE_NAMED = {"architectures": ["ExaoneMoEForCausalLM"]}
PUBLISHED_MINIMAX = {
    "rope_parameters": None,
    "rope_theta": 5_000_000,
    "attn_type_list": [1, 1],
    "qk_norm_type": "per_layer",
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "use_qk_norm": True,
    "use_routing_bias": True,
}

MIXTURE_CASES = [
    Case("one expert each", "mixtral", {"num_experts_per_tok": 1, "head_dim": 24}),
    Case("all experts", "mixtral", {"num_experts_per_tok": 4, "tie_word_embeddings": True}),
    Case("window", "mixtral", {"sliding_window": 20}, block_size=5),
    Case("shards", "mixtral", {"max_shard_size": "60KB"}),
    Case("weights that add up to one", "qwen2_moe", {"norm_topk_prob": True}),
    Case("every second layer", "qwen2_moe", {"decoder_sparse_step": 2, **MORE_LAYERS}),
    Case("dense layers named", "qwen2_moe", {"mlp_only_layers": [1]}, block_size=7),
    Case("no biases, tied", "qwen2_moe", {"qkv_bias": False, "tie_word_embeddings": True}),
    Case("windows", "qwen2_moe", {**SLIDING, **MORE_LAYERS, "max_window_layers": 3}),
    Case(
        "windows unsaid",
        "qwen2_moe",
        {**SLIDING, **MORE_LAYERS, "max_window_layers": 3},
        {"layer_types": None},
    ),
    Case("weights as they are", "qwen3_moe", {"norm_topk_prob": False}),
    Case("windows, biases", "qwen3_moe", {**SLIDING, "attention_bias": True}, block_size=3),
    Case("first layer dense", "qwen3_moe", {"mlp_only_layers": [0], "max_shard_size": "60KB"}),
    Case("as published", "qwen3_moe", edits={"num_local_experts": None, "num_experts": 8}),
    Case("plain rope", "gpt_oss", rope(rope_type="default")),
    Case("tight limits", "gpt_oss", {"swiglu_limit": 0.5, "swiglu_alpha": 0.8}, block_size=5),
    Case("no biases", "gpt_oss", {"attention_bias": False, "tie_word_embeddings": True}),
    Case("yarn of old", "gpt_oss", edits=old_rope(**OLD_YARN, truncate=False)),
    Case("no rope at all", "gpt_oss", edits={"rope_parameters": None}),
    Case("layer types unsaid", "gpt_oss", MORE_LAYERS, {"layer_types": None}),
    Case(
        "layer types",
        "gpt_oss",
        {"layer_types": ["full_attention", "sliding_attention"], "num_key_value_heads": 4},
    ),
    Case("query latents", "deepseek_v2", {"q_lora_rank": 20, "n_shared_experts": 1}),
    Case("best groups", "deepseek_v2", {**LIMITED, "num_experts_per_tok": 3}, block_size=5),
    Case("biases", "deepseek_v2", {"attention_bias": True, "mlp_bias": True}),
    Case("biases of latents", "deepseek_v2", {"attention_bias": True, "q_lora_rank": 20}),
    Case("yarn", "deepseek_v2", {**SCALED, "first_k_dense_replace": 0}),
    Case(
        "yarn of old", "deepseek_v2", edits=old_rope(**OLD_YARN, mscale=0.7, mscale_all_dim=0.7)
    ),
    Case("tied", "deepseek_v2", {"tie_word_embeddings": True, "max_shard_size": "60KB"}),
    Case("whole queries", "deepseek_v3", {"q_lora_rank": None, **DENSE_ONLY}),
    Case("halves turn", "deepseek_v3", {"rope_interleave": False}, block_size=1),
    Case(
        "weights as they are", "deepseek_v3", {"norm_topk_prob": False, "n_shared_experts": 2}
    ),
    Case("one group", "deepseek_v3", {"n_group": 1, "topk_group": 1, **MORE_LAYERS}),
    Case("biases", "deepseek_v3", {"attention_bias": True, "v_head_dim": 18}, block_size=7),
    Case("yarn", "deepseek_v3", SCALED),
    Case("stretched without scales", "deepseek_v3", rope(**TYPED_YARN)),
    Case("whole queries, yarn", "kimi_k2", {**SCALED, "q_lora_rank": None}, block_size=5),
    Case("groups, two shared", "kimi_k2", {**GROUPS, "n_shared_experts": 2}),
    Case("as published", "kimi_k2", edits={"num_nextn_predict_layers": 0, "seq_aux": True}),
    Case("whole queries", "mistral4", {"q_lora_rank": None, **GROWN}, block_size=5),
    Case("halves turn", "mistral4", {"rope_interleave": False, "n_shared_experts": 2}),
    Case("one group", "mistral4", {"n_group": 1, "topk_group": 1, **MORE_LAYERS}),
    Case("weights as they are", "mistral4", {"norm_topk_prob": False, **TIED}),
    Case("first layer dense", "mistral4", {"first_k_dense_replace": 1}, block_size=7),
    Case("biases", "mistral4", {"attention_bias": True, "v_head_dim": 18}),
    Case("no rope at all", "mistral4", edits={"rope_parameters": None}),
    Case("heads not normed", "glm4_moe", {"use_qk_norm": False, "attention_bias": True}),
    Case("all of a head turns", "glm4_moe", partial(1.0), block_size=5),
    Case("a quarter turns", "glm4_moe", {**partial(0.25), "num_key_value_heads": 1}),
    Case("partial rotary of old", "glm4_moe", edits={"rope_parameters": None, **QUARTER}),
    Case("share that turns unsaid", "glm4_moe", edits={"rope_parameters": None}),
    Case("groups, biases", "glm4_moe", {**GROUPS, "attention_bias": True, **MORE_LAYERS}),
    Case("yarn", "glm4_moe", rope(**TYPED_YARN, partial_rotary_factor=0.5), block_size=7),
    Case("no dense layer", "glm4_moe", {"first_k_dense_replace": 0, "n_shared_experts": 2}),
    Case("dense layers named", "glm4_moe_lite", {"mlp_layer_types": ["sparse", "dense"]}),
    Case("dense layers unnamed", "glm4_moe_lite", MORE_LAYERS, {"mlp_layer_types": None}),
    Case("whole queries", "glm4_moe_lite", {"q_lora_rank": None, **GROUPS}, block_size=5),
    Case("halves turn", "glm4_moe_lite", {"rope_interleave": False, **SCALED}),
    Case("no windows, nothing turns", "exaone_moe", {"layer_types": FULL}),
    Case("layers unnamed", "exaone_moe", MORE_LAYERS, PATTERN),
    Case("pattern in letters", "exaone_moe", edits={"sliding_window_pattern": "LG"}),
    Case("dense layers named", "exaone_moe", {"mlp_layer_types": ["sparse", "dense"], **TIED}),
    Case("groups, two shared", "exaone_moe", {**GROUPS, "num_shared_experts": 2}, block_size=5),
    Case("architecture as published", "exaone_moe", edits=EXAONE_NAMED),
    Case("no windows", "dots1", {"sliding_window": None, "norm_topk_prob": True}),
    Case("biases", "dots1", {"attention_bias": True, "head_dim": 16}, block_size=3),
    Case("layer types unsaid", "dots1", MORE_LAYERS, {"layer_types": None}),
    Case("groups", "dots1", {**GROUPS, "routed_scaling_factor": 2.5, **TIED}),
    Case("all of a head turns", "minimax_m2", {"rotary_dim": 16, "num_key_value_heads": 4}),
    Case("a quarter turns", "minimax_m2", {"rotary_dim": 4, **TIED}, block_size=5),
    Case("one kv head", "minimax_m2", {"num_key_value_heads": 1}, block_size=7),
    Case("as published", "minimax_m2", edits=PUBLISHED_MINIMAX),
    Case("yarn", "minimax_m2", rope(**TYPED_YARN, partial_rotary_factor=0.5)),
    Case("weights that add up to one", "olmoe", {"norm_topk_prob": True}, block_size=5),
    Case("biases", "olmoe", {"attention_bias": True, "num_key_value_heads": 1, **TIED}),
    Case("every second layer", "ernie4_5_moe", {"moe_layer_interval": 2, **MORE_LAYERS}),
    Case(
        "first and last layers dense",
        "ernie4_5_moe",
        {"moe_layer_start_index": 1, "moe_layer_end_index": 2, **MORE_LAYERS},
        block_size=5,
    ),
    Case("no shared experts", "ernie4_5_moe", {"moe_num_shared_experts": 0, "head_dim": 16}),
    Case("untied", "ernie4_5_moe", {"tie_word_embeddings": False, **rope(**TYPED_YARN)}),
]
EVERY_CASE = [
    *CASES,
    *MIXTURE_CASES,
    *VISION_TEXT_CASES,
    *HYBRID_CASES,
    *MIXER_CASES,
    *CONVOLUTION_CASES,
    *GEMMA4_CASES,
]


def pack_mxfp4(folder: Path, packed: Path) -> None:
    """Give a gpt-oss checkpoint other experts, which a copy at `packed` has as published.

    The folder has what transformers makes of them.
    """
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # slow to load

    copytree(folder, packed)
    generator, plain = torch.Generator().manual_seed(0), load_file(folder / WEIGHTS)
    four_bits = dict(plain)
    for name in [name for name in plain if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = four_bits.pop(name).shape
        shape, byte = (count, outputs, inputs // 32), torch.uint8
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=byte)
        scales = torch.randint(122, 126, shape, generator=generator, dtype=byte)
        four_bits |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        unpacked = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        plain[name] = unpacked.contiguous()
    save_file(plain, folder / WEIGHTS, {"format": "pt"})
    save_file(four_bits, packed / WEIGHTS, {"format": "pt"})
    edit_config(packed, {"quantization_config": {"quant_method": "mxfp4"}})


def stack_experts(folder: Path) -> None:
    """Store a checkpoint once more with all experts in one tensor, as transformers has them."""
    from transformers import AutoModelForCausalLM  # slow to load

    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(folder, save_original_format=False)
    names = load_file(folder / WEIGHTS)
    assert any(name.endswith(".experts.down_proj") for name in names)


def turn_experts(folder: Path) -> None:
    """Store stacked experts inputs first, as those of Qwen3-VL were published."""
    file, turned = folder / WEIGHTS, 0
    tensors = load_file(file)
    for name, stack in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            assert stack.shape[1] != stack.shape[2]
            tensors[name], turned = stack.mT.contiguous(), turned + 1
    assert turned
    save_file(tensors, file, {"format": "pt"})


def part_experts(folder: Path, parted: Path) -> None:
    """A copy whose stacked experts are stored one by one, as those of most families are."""
    copytree(folder, parted)
    tensors = load_file(folder / WEIGHTS)
    for name in [one for one in tensors if one.endswith("experts.gate_up_proj")]:
        at = name.removesuffix("gate_up_proj")
        pairs = zip(tensors.pop(name), tensors.pop(f"{at}down_proj"), strict=True)
        for number, (both, down) in enumerate(pairs):
            gate, up = both.clone().chunk(2)
            parts = {"gate_proj": gate, "up_proj": up, "down_proj": down.clone()}
            tensors |= {f"{at}{number}.{part}.weight": one for part, one in parts.items()}
    save_file(tensors, parted / WEIGHTS, {"format": "pt"})


def guess_ahead(folder: Path) -> None:
    """Add what a published DeepSeek-V3 has behind its last layer, to guess tokens ahead."""
    file = folder / WEIGHTS
    extra = {f"model.layers.2.{name}.weight": torch.ones(3) for name in ("eh_proj", "mlp.gate")}
    save_file({**load_file(file), **extra}, file, {"format": "pt"})
