"""What configs may ask for, family by family: each is compared with transformers.

docs/reference/models.md is made of this (tests/parity.py), so a case has a name to read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.fakes.checkpoints import FAMILY_SHAPE, SHAPE
from tests.fakes.mixture_shapes import MIXTURE_SHAPE, STRETCHED

DTYPES = ("float32", "bfloat16", "float16")
STATES = {"linear_num_key_heads", "mamba_n_heads", "mamba_num_heads", "conv_L_cache"}
LENGTHS = (1, 2, 15, 16, 17, 33, 75, 130)


class Feature(StrEnum):
    """What an engine does with a model."""

    WHOLE = "whole prompts"
    CHUNKED = "chunked prompts"
    ODD_BLOCKS = "odd blocks"
    SHARED = "shared prefixes"
    WINDOWS = "windows"
    SPLIT = "split"


def covered() -> Iterator[tuple[str, str, Feature]]:
    """Each family in each dtype with each feature that it has, as the tests run them all."""
    for family, shape in FAMILY_SHAPE.items():
        for feature in Feature:
            if has(shape, feature):
                yield from ((family, dtype, feature) for dtype in DTYPES)


def has(shape: Mapping[str, Any], feature: Feature) -> bool:
    """Whether models of this shape have it: who keeps a state shares no prefix."""
    if feature is Feature.SHARED:
        return not STATES & shape.keys()
    return feature is not Feature.WINDOWS or "sliding_window" in shape


@dataclass(frozen=True)
class Case:
    """A checkpoint to make, and what is changed in its config.json afterwards."""

    name: str
    family: str = "llama"
    overrides: Mapping[str, Any] = field(default_factory=dict)
    edits: Mapping[str, Any] = field(default_factory=dict)
    block_size: int = 16
    max_model_len: int | None = None
    lengths: tuple[int, ...] = LENGTHS
    error: float = 3e-4  # of a logit; transformers itself is up to 1.1e-4 from float64


def rope(**settings: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_theta": 1000.0, **settings}}


def old_rope(**settings: object) -> dict[str, object]:
    return {"rope_parameters": None, "rope_theta": 1000.0, "rope_scaling": settings}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
TYPED_YARN = {"rope_type": "yarn", **YARN}
SLIDING = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
UNUSED = {"use_sliding_window": False}

UNTIED = {"tie_word_embeddings": False}
UNCAPPED = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
HALF_OF_PAIRS = {"partial_rotary_factor": 0.5, "factor": 2.0}
TWICE = {"rope_type": "linear", "factor": 2.0}
GRANITE_SCALES = (
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
)
GROWTH = "llama_4_scaling_beta"
MINISTRAL3 = {
    "model_type": "ministral3",
    "sliding_window": None,
    "rope_parameters": STRETCHED,
}
MISTRAL4 = {"model_type": "mistral4", **MIXTURE_SHAPE["mistral4"]}
UNNAMED_MISTRAL = {**SHAPE, "head_dim": 16, "sliding_window": 20}
GEMMA3 = {"num_hidden_layers": 5, "sliding_window_pattern": 3}
OLD_GEMMA3 = {
    "layer_types": None,
    "rope_parameters": None,
    "rope_theta": 5000.0,
    "rope_local_base_freq": 100.0,
    "sliding_window_pattern": 3,
}
OLD_GEMMA3_TEXT = {
    **SHAPE,
    **FAMILY_SHAPE["gemma3"],
    "rope_scaling": TWICE,
    "model_type": "gemma3_text",
}
OLD_OLMO3 = {
    "rope_parameters": None,
    "rope_theta": 500_000.0,
    "rope_scaling": TYPED_YARN,
}
FULL = ["full_attention", "full_attention"]
FULL_THEN_SLIDING = ["full_attention", "sliding_attention"]
QUARTER = {"rope_theta": 1000.0, "partial_rotary_factor": 0.25}
PHI3 = {
    "sliding_window": None,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
}
FACTORS = {"short_factor": [1.0, 1.2, 1.5, 2.0], "long_factor": [1.0, 3.0, 5.0, 9.0]}


def partial(share: float) -> dict[str, object]:
    return rope(rope_type="default", partial_rotary_factor=share)


def longrope(trained: int, **settings: object) -> dict[str, object]:
    """Four pairs turn: all of a head of 8 dimensions."""
    settings = {"rope_type": "longrope", **FACTORS, **settings}
    return {**PHI3, **rope(**settings), "original_max_position_embeddings": trained}


def old_longrope(kind: str) -> dict[str, object]:
    settings = {"type": kind, "original_max_position_embeddings": 64, **FACTORS}
    return {**old_rope(**settings), "original_max_position_embeddings": 64}


CASES = [
    Case("plain"),
    Case("tied", overrides={"tie_word_embeddings": True}, block_size=5),
    Case("shards", overrides={"max_shard_size": "60KB"}),
    Case("one kv head", overrides={"num_key_value_heads": 1}, block_size=1),
    Case("as many kv heads", overrides={"num_key_value_heads": 4}),
    Case("biases", overrides={"attention_bias": True, "mlp_bias": True}),
    Case("head dim", overrides={"head_dim": 24}, block_size=7),
    Case("proportional", overrides=rope(rope_type="proportional", **HALF_OF_PAIRS)),
    Case("linear", overrides=rope(rope_type="linear", factor=4.0)),
    Case("llama3", overrides=rope(rope_type="llama3", **LLAMA3)),
    Case("yarn", overrides=rope(**TYPED_YARN)),
    Case(
        "yarn betas",
        overrides={"head_dim": 32, **rope(**TYPED_YARN, beta_fast=4, beta_slow=2)},
    ),
    Case("yarn not truncated", overrides=rope(**TYPED_YARN, truncate=False)),
    Case("yarn attention", overrides=rope(**TYPED_YARN, attention_factor=0.7)),
    Case("yarn scales", overrides=rope(**TYPED_YARN, mscale=1.5, mscale_all_dim=0.5)),
    Case("dynamic", overrides=rope(rope_type="dynamic", factor=2.0)),
    Case("old default", edits={"rope_parameters": None, "rope_theta": 1000.0}),
    Case("old linear", edits=old_rope(type="linear", factor=4.0)),
    Case("old llama3", edits=old_rope(rope_type="llama3", **LLAMA3)),
    Case("old yarn", edits=old_rope(type="yarn", **YARN)),
    Case("no rope at all", edits={"rope_parameters": None}),
    Case("trained length unsaid", edits=old_rope(type="yarn", factor=4.0)),
    Case(
        "trained length outside",
        edits={
            **old_rope(type="yarn", factor=4.0),
            "original_max_position_embeddings": 128,
        },
    ),
    Case("tied, no window", "mistral", {"tie_word_embeddings": True, "sliding_window": None}),
    Case("small window", "mistral", {"sliding_window": 3}, block_size=5),
    Case("layer types", "mistral", edits={"layer_types": FULL_THEN_SLIDING}, block_size=5),
    Case("no window", "qwen2", {"use_sliding_window": False}),
    Case("tied", "qwen2", {"tie_word_embeddings": True, "max_shard_size": "60KB"}),
    Case("window unused", "qwen2", edits={**UNUSED, "layer_types": None}),
    Case("layer types unsaid", "qwen2", edits={"layer_types": None}),
    Case("layer types", "qwen2", {"layer_types": ["sliding_attention", "full_attention"]}),
    Case("no window", "qwen3", {"use_sliding_window": False}),
    Case("tied", "qwen3", {"tie_word_embeddings": True, **SLIDING}, block_size=3),
    Case("biases", "qwen3", {"attention_bias": True, "max_shard_size": "60KB"}),
    Case("layer types", "ministral", {"layer_types": FULL_THEN_SLIDING}),
    Case("small window", "ministral3", {"sliding_window": 3}, block_size=5),
    Case("queries never grow", "ministral3", edits=rope(**STRETCHED | {GROWTH: 0.0})),
    Case("yarn of old", "ministral3", edits=old_rope(**STRETCHED)),
    Case("no rope at all", "ministral3", edits={"rope_parameters": None}),
    Case("no window, all of a head turns", "phi3", PHI3),
    Case("small window", "phi3", {"sliding_window": 3}, block_size=5),
    Case("three quarters turn", "phi3", partial(0.75)),
    Case("longrope, short", "phi3", longrope(64), max_model_len=64, lengths=(1, 15, 33, 40)),
    Case("longrope, long", "phi3", longrope(64), lengths=(65, 75, 130), block_size=7),
    Case(
        "longrope attention factor", "phi3", longrope(64, attention_factor=1.3), lengths=(70,)
    ),
    Case("longrope of old", "phi3", PHI3, old_longrope("longrope"), lengths=(65, 75, 130)),
    Case("longrope, once su", "phi3", PHI3, old_longrope("su"), lengths=(65, 130)),
    Case("gelu of old", "gemma", edits={"hidden_act": "gelu"}),
    Case("untied", "gemma", {"tie_word_embeddings": False}),
    Case("small window", "gemma2", {"sliding_window": 3, "num_hidden_layers": 3}, block_size=5),
    Case("without caps", "gemma2", UNCAPPED),
    Case("low caps", "gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    Case("layer types unsaid", "gemma2", {"num_hidden_layers": 3}, {"layer_types": None}),
    Case("caps unsaid", "gemma2", edits=dict.fromkeys(UNCAPPED)),
    Case("three windows to one", "gemma3_text", GEMMA3),
    Case("spelled of old", "gemma3_text", GEMMA3, OLD_GEMMA3),
    Case(
        "spelled of old, scaled", "gemma3_text", GEMMA3, {**OLD_GEMMA3, "rope_scaling": TWICE}
    ),
    Case("capped logits", "gemma3_text", {"final_logit_softcapping": 3.0}, block_size=3),
    Case("untied", "gemma3_text", {"tie_word_embeddings": False, "attention_bias": True}),
    Case("images left out", "gemma3", GEMMA3, block_size=5),
    Case("images left out", "mistral3", {"sliding_window": None}, block_size=5),
    Case("text of Ministral 3", "mistral3", MINISTRAL3, block_size=5),
    Case("text of Mistral 4", "mistral3", {**MISTRAL4, "head_dim": 20}),
    Case("text unnamed", "mistral3", edits={"text_config": UNNAMED_MISTRAL}),
    Case("tied", "mistral3", edits={"tie_word_embeddings": None}),
    Case("text config of old", "gemma3", edits={"text_config": OLD_GEMMA3_TEXT}),
    Case("untied inside only", "gemma3", edits={"text_config": OLD_GEMMA3_TEXT | UNTIED}),
    Case("without scales", "granite", dict.fromkeys(GRANITE_SCALES, 1.0)),
    Case("tied, biases", "granite", {"tie_word_embeddings": True, "attention_bias": True}),
    Case("scales unsaid", "granite", edits=dict.fromkeys(GRANITE_SCALES)),
    Case("layers named", "smollm3", {"no_rope_layers": [0, 1]}, block_size=5),
    Case("layers unnamed", "smollm3", {"num_hidden_layers": 5}, {"no_rope_layers": None}),
    Case("no window", "smollm3", {"use_sliding_window": False}),
    Case("every layer turns", "smollm3", {"no_rope_layers": [1, 1], **UNTIED}),
    Case("biases", "olmo2", {"attention_bias": True, "num_key_value_heads": 1}, block_size=3),
    Case("three windows to one", "olmo3", {"layer_types": None, "num_hidden_layers": 5}),
    Case("yarn of old", "olmo3", edits=OLD_OLMO3),
    Case("all of a head turns", "glm", partial(1.0)),
    Case("a quarter turns", "glm", partial(0.25), block_size=5),
    Case("no biases", "glm4", {"attention_bias": False, "tie_word_embeddings": True}),
    Case("partial rotary of old", "glm4", edits={"rope_parameters": None, **QUARTER}),
    Case("biases", "ernie4_5", {"use_bias": True, **UNTIED}),
    Case("named as at first", "ernie4_5", edits={"architectures": ["Ernie4_5_ForCausalLM"]}),
    Case("biases", "helium", {"attention_bias": True, "mlp_bias": True}, block_size=7),
    Case("biases", "seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    Case("no windows", "exaone4", {"sliding_window": None, "layer_types": FULL}),
    Case("yarn", "exaone4", rope(**TYPED_YARN)),
    Case("pattern in letters", "exaone4", edits={"sliding_window_pattern": "LG"}),
]
