"""Models of transformers without a family of ours: those that run, and some that must not.

docs/reference/models.md is made of this (tests/parity.py).
"""

from collections.abc import Mapping
from typing import Any

NARROW: Mapping[str, Any] = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "n_inner": 48,
}
ADAPTED: Mapping[str, Mapping[str, Any]] = {
    "apertus": {},
    "biogpt": {},
    "cohere": {},
    "cohere2": {"sliding_window": 20},
    "gpt2": NARROW,
    "gpt_bigcode": NARROW,
    "gpt_neox": {},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "nemotron": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi": {},
    "phimoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "stablelm": {},
    "starcoder2": {"sliding_window": 20},
}
STATEFUL: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "mamba": ({"state_size": 4}, "layers of linear_attention do not run"),
    "diffllama": ({}, "differs from itself by"),
    "bloom": (NARROW, "do not all have keys and values"),
}
