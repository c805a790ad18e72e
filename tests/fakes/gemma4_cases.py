"""What configs of Gemma 4 may ask for, case by case."""

from tests.fakes.families import Case
from tests.fakes.gemma4_shapes import GLOBAL, LOCAL

UNSHARED = {"num_kv_shared_layers": 0}
# transformers cannot share KV without inputs of each layer
WITHOUT_INPUTS = {"hidden_size_per_layer_input": 0, **UNSHARED}
ALIKE = {"global_head_dim": 8, "num_global_key_value_heads": None}
LAST_LOCAL = {"layer_types": [LOCAL, GLOBAL, LOCAL, GLOBAL, LOCAL, LOCAL]}
GOOGLES = {"per_layer_config": None, "global_head_dim": 16}
GEMMA4_CASES = [
    Case("inputs of each layer, shared KV", "gemma4_text"),
    Case("no shared KV", "gemma4_text", UNSHARED, block_size=5),
    Case("narrow MLPs", "gemma4_text", {"use_double_wide_mlp": False}, block_size=1),
    Case("no inputs of each layer", "gemma4_text", WITHOUT_INPUTS, block_size=3),
    Case("heads all alike", "gemma4_text", ALIKE),
    Case("no windows", "gemma4_text", {"layer_types": [GLOBAL] * 6}),
    Case("biases", "gemma4_text", {"attention_bias": True, "tie_word_embeddings": False}),
    Case("a last layer with a window", "gemma4_text", edits=LAST_LOCAL),
    Case("spelled as published", "gemma4_text", edits=GOOGLES),
    Case("experts, keys are values", "gemma4"),
    Case("no experts", "gemma4", {"enable_moe_block": False}, block_size=5),
    Case("values of their own", "gemma4", {"attention_k_eq_v": False}),
    Case("as many global heads", "gemma4", {"num_global_key_value_heads": 2}),
]
