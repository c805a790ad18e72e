"""Configs that ask for what we do not have are refused, by the name of what they ask."""

import pytest

from engine.errors import UnusableCheckpoint
from engine.models.config import parse_config
from engine.models.rope_config import BETA, TRAINED
from tests.fakes.raw_configs import raw_config

E5M2 = {"quant_method": "fp8", "fmt": "e5m2"}
GROWS = {"rope_type": "default", BETA: 0.5, TRAINED: 100}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": "gpt2"}, "gpt2.*LlamaForCausalLM.*Qwen3ForCausalLM"),
        ({"model_type": None}, "None.*LlamaForCausalLM"),
        ({"architectures": ["LlamaForTokenClassification"]}, "TokenClassification"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads 0: Expected `int` >= 1"),
        ({"head_dim": 7}, "head_dim 7: .*multiple of 2"),
        ({"head_dim": 10**30}, "head_dim"),
        ({"intermediate_size": 10**30}, "intermediate_size"),
        ({"hidden_act": "relu2"}, "hidden_act relu2.*these are: silu, gelu"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported with llama"),
        ({"rope_scaling": "linear"}, "config.json"),
        ({"rope_parameters": 5}, "rope_parameters is no object"),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, "factor"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor of rope type linear is missing"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            "low_freq_factor of rope type llama3 is missing",
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 0}},
            r"parameters\.factor 0: ",
        ),
        (
            {"rope_parameters": {"rope_theta": -5.0}},
            r"parameters\.rope_theta -5\.0: ",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "do not say the same"),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 1}}}, "every layer"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope has 0 factors for 4 pairs"),
        ({"rope_parameters": {"rope_type": "axial"}}, "axial"),
    ],
)
def test_what_we_cannot_run_is_named(changes: dict[str, object], text: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(raw_config("llama", **changes))


@pytest.mark.parametrize(
    ("family", "changes", "text"),
    [
        ("phi3", {"partial_rotary_factor": 2}, "16 of 8 dimensions"),
        ("phi3", {"partial_rotary_factor": 0.4}, "rotary_factor 0.4: .*multiple of 2"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "2 of no_rope_layers for 30"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("gemma3_text", {"rope_parameters": [5]}, "rope_parameters is no object"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ("gemma3_text", {"layer_types": ["chunked_attention"] * 30}, "layer_types chunked"),
        (
            "gemma3_text",
            {"layer_types": ["full_attention"] * 3},
            "3 layer_types.*for 30 layers",
        ),
        ("ministral3", {"rope_parameters": [5]}, "rope_parameters is no object"),
        ("ministral3", {"rope_parameters": {BETA: 0.5}}, f"{TRAINED} is missing"),
        ("ministral3", {"rope_parameters": GROWS | {BETA: "much"}}, f'{BETA} .* is "much"'),
        ("mistral4", {"rope_parameters": [5]}, "rope_parameters is no object"),
        (
            "mistral4",
            {"rope_parameters": GROWS | {"partial_rotary_factor": 0.25}},
            "partial_rotary_factor 0.25 is not .* 8 beside .* 12",
        ),
        ("granite", {"logits_scaling": 0}, "division by zero"),
        ("mixtral", {"num_experts_per_tok": 9}, "9 experts per token, and only 4"),
        ("qwen3_moe", {"moe_intermediate_size": 0}, "moe_intermediate_size 0: "),
        ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act gelu"),
        ("gpt_oss", {"quantization_config": E5M2}, "quantized by fp8: fmt e5m2"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method noaux_tc"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob True"),
        ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq 2"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func softmax"),
        ("deepseek_v3", {"n_group": 3}, "8 experts do not make 3 groups"),
        ("deepseek_v3", {"topk_group": 1, "num_experts_per_tok": 3}, "no choice.*3 experts"),
        ("deepseek_v3", {"quantization_config": E5M2}, "quantized by fp8: fmt e5m2"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "rank"),
        ("kimi_k2", {"topk_method": "greedy"}, "topk_method greedy"),
        ("glm4_moe", {"scoring_func": "softmax"}, "scoring_func softmax"),
        ("glm4_moe", {"topk_group": 2}, "2 of 1 groups"),
        ("glm4_moe_lite", {"first_k_dense_replace": 3}, "first_k_dense_replace 3"),
        ("glm4_moe_lite", {"mlp_layer_types": ["conv"] * 30}, "mlp_layer_types conv"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "1 mlp_layer_types.*30 layers"),
        ("glm4_moe_lite", {"partial_rotary_factor": 0.5}, "partial_rotary_factor.*lite"),
        ("exaone_moe", {"mlp_layer_types": ["none"] * 30}, "mlp_layer_types none"),
        ("exaone_moe", {"sliding_window": None}, "sliding_window None"),
        ("dots1", {"scoring_func": "softmax"}, "scoring_func softmax"),
        ("minimax_m2", {"attn_type_list": [1, 0]}, r"attn_type_list \[1, 0\]"),
        ("minimax_m2", {"qk_norm_type": "per_head"}, "qk_norm_type per_head"),
        ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm False"),
        ("minimax_m2", {"use_routing_bias": False}, "use_routing_bias False"),
        ("minimax_m2", {"shared_intermediate_size": 64}, "shared_intermediate_size 64"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv 8.0"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias True"),
        ("ernie4_5_moe", {"moe_norm_min": 1e-3}, "moe_norm_min 0.001"),
    ],
)
def test_what_a_family_cannot_run_is_named(
    family: str, changes: dict[str, object], text: str
) -> None:
    with pytest.raises(UnusableCheckpoint, match=text):
        parse_config(raw_config(family, rope_parameters=None) | changes)
