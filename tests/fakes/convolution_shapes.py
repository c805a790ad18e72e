"""Sizes of small models with gated short convolutions; the rest is as in checkpoints.py."""

from typing import Any

from tests.fakes.mixture_shapes import EXPERTS

# blocks of 16 tokens hold one layer's state in float32, none in half precision
LFM2 = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "conv_L_cache": 14,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
CONVOLUTION_SHAPE: dict[str, dict[str, Any]] = {
    "lfm2": {**LFM2, "block_multiple_of": 20},
    "lfm2_moe": {**LFM2, **EXPERTS, "num_experts": 8, "num_dense_layers": 1},
}
