"""Names the number of a config.json that is something else, such as text, or out of range.
Torch-free.

It is looked for only once a config cannot be used: what is never read may be anything.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from engine.models.family import FULL, SLIDING, TEXT

ROPES = ("rope_parameters", "rope_scaling")
PARTS = (TEXT, *ROPES, FULL, SLIDING)
"""The keys of config.json whose values have numbers in them."""
SHOWN = 40  # characters of a value
NUMBERS = frozenset(
    {
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
        *("num_attention_heads", "num_key_value_heads", "rms_norm_eps"),
        *("max_position_embeddings", "original_max_position_embeddings"),
        *("sliding_window", "max_window_layers", "no_rope_layer_interval"),
        *("rope_theta", "rope_local_base_freq", "partial_rotary_factor", "rotary_dim"),
        *("factor", "low_freq_factor", "high_freq_factor", "attention_factor"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "llama_4_scaling_beta"),
        *("embedding_multiplier", "residual_multiplier", "attention_multiplier"),
        *("logits_scaling", "query_pre_attn_scalar"),
        *("attn_logit_softcapping", "final_logit_softcapping"),
        *("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
        *("num_experts_per_tok", "moe_k", "n_group", "topk_group", "routed_scaling_factor"),
        *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        *("moe_intermediate_size", "shared_expert_intermediate_size"),
        *("moe_shared_expert_intermediate_size", "moe_latent_size", "layer_norm_epsilon"),
        *("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
        *("first_k_dense_replace", "decoder_sparse_step", "num_nextn_predict_layers"),
        *("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        *("kv_lora_rank", "q_lora_rank", "swiglu_alpha", "swiglu_limit"),
        *("linear_num_key_heads", "linear_num_value_heads", "linear_conv_kernel_dim"),
        *("linear_key_head_dim", "linear_value_head_dim", "full_attention_interval"),
        *("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand"),
        *("shared_intermediate_size", "attn_rotary_emb", "mamba_d_ssm"),
        *("attention_in_multiplier", "attention_out_multiplier", "key_multiplier"),
        *("ssm_in_multiplier", "ssm_out_multiplier", "lm_head_multiplier"),
        *("norm_eps", "conv_L_cache", "conv_dim", "conv_dim_out", "num_dense_layers"),
        *("block_dim", "block_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier"),
        *("global_head_dim", "num_global_key_value_heads", "num_kv_shared_layers"),
        *("hidden_size_per_layer_input", "vocab_size_per_layer_input", "top_k_experts"),
        *("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel"),
    }
)


FILE_KEYS = {
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads", "num_global_key_value_heads"),
    "intermediate_size": (
        *("intermediate_size", "shared_intermediate_size"),
        *("block_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier"),
    ),
    "head_dim": ("head_dim", "qk_rope_head_dim", "global_head_dim"),
    "layer_input_width": ("hidden_size_per_layer_input",),
    "attention_scale": ("query_pre_attn_scalar", "attention_multiplier", "key_multiplier"),
    "embedding_scale": ("embedding_multiplier",),
    "logits_scale": ("logits_scaling", "lm_head_multiplier"),
    "rope_theta": ("rope_theta", "rope_local_base_freq"),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon", "norm_eps"),
    "max_positions": ("max_position_embeddings",),
    "rotary_dim": ("partial_rotary_factor", "rotary_dim", "head_dim"),
    "window": ("sliding_window",),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "moe_k", "top_k_experts"),
    "count": ("n_group",),
    "chosen": ("topk_group",),
    "scale": ("routed_scaling_factor",),
    "width": (
        *("moe_intermediate_size", "shared_expert_intermediate_size"),
        "moe_shared_expert_intermediate_size",
        *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        *("intermediate_size", "shared_intermediate_size"),
    ),
    "latent_width": ("moe_latent_size",),
    "rank": ("kv_lora_rank",),
    "plain_dim": ("qk_nope_head_dim",),
    "value_dim": ("v_head_dim",),
    "query_rank": ("q_lora_rank",),
    "key_heads": ("linear_num_key_heads", "mamba_n_groups", "n_groups"),
    "value_heads": ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"),
    "key_width": ("linear_key_head_dim", "mamba_d_state", "ssm_state_size"),
    "value_width": ("linear_value_head_dim", "mamba_head_dim"),
    "kernel": ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel", "conv_L_cache"),
}
"""The keys of config.json that our fields of other names are made of."""


def wrong_number(raw: Mapping[str, Any]) -> str | None:
    """Says which field has to be a number, and what it is; None: all of them are numbers."""
    for path, _, value in _numbers(raw, ""):
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            return f"{path} has to be a number, and is {_shown(value)}"
    return None


def refused_number(raw: Mapping[str, Any], error: Exception) -> str:
    """A refusal of msgspec's, with the keys and values of config.json instead of our fields;
    or an error of arithmetic, with the keys whose values are 0.
    """
    if isinstance(error, ZeroDivisionError):
        zeros = [f"{where} 0" for where, _, value in _numbers(raw, "") if value == 0]
        return f"{', '.join(zeros)}: {error}"
    said, _, path = str(error).rpartition(" - at `$")
    field = path.rstrip("`").rpartition(".")[2]
    keys = FILE_KEYS.get(field, (field,))
    given = [(where, value) for where, key, value in _numbers(raw, "") if key in keys]
    suspects = [(where, value) for where, value in given if value is not None and value <= 0]
    if not said or not (given or field in FILE_KEYS):
        return str(error)
    named = [f"{where} {_shown(value)}" for where, value in suspects or given]
    return f"{', '.join(named) or keys[0]}: {said}"


def _numbers(raw: Mapping[str, Any], within: str) -> Iterator[tuple[str, str, Any]]:
    """The path, the key and the value of all that has to be a number."""
    for key, value in raw.items():
        if key in NUMBERS:
            yield f"{within}{key}", key, value
        elif key in PARTS and isinstance(value, Mapping):
            yield from _numbers(value, f"{within}{key}.")


def _shown(value: object) -> str:
    said = json.dumps(value)
    return said if len(said) <= SHOWN else f"{said[:SHOWN]}…"
