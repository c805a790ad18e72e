"""Names the number of a config.json that is something else, such as text. Torch-free.

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
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
        *("embedding_multiplier", "residual_multiplier", "attention_multiplier"),
        *("logits_scaling", "query_pre_attn_scalar"),
        *("attn_logit_softcapping", "final_logit_softcapping"),
        *("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
        *("num_experts_per_tok", "moe_k", "n_group", "topk_group", "routed_scaling_factor"),
        *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        *("moe_intermediate_size", "shared_expert_intermediate_size"),
        *("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
        *("first_k_dense_replace", "decoder_sparse_step", "num_nextn_predict_layers"),
        *("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"),
        *("kv_lora_rank", "q_lora_rank", "swiglu_alpha", "swiglu_limit"),
    }
)


def wrong_number(raw: Mapping[str, Any]) -> str | None:
    """Says which field has to be a number, and what it is; None: all of them are numbers."""
    return next(_wrong_numbers(raw, ""), None)


def _wrong_numbers(raw: Mapping[str, Any], within: str) -> Iterator[str]:
    for key, value in raw.items():
        if key in NUMBERS and not isinstance(value, int | float | None):
            said = json.dumps(value)
            shown = said if len(said) <= SHOWN else f"{said[:SHOWN]}…"
            yield f"{within}{key} has to be a number, and is {shown}"
        elif key in PARTS and isinstance(value, Mapping):
            yield from _wrong_numbers(value, f"{within}{key}.")
