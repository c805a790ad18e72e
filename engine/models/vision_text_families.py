"""The text parts of models for text and images: families of text models, within others.

Their ropes give each token three positions (m-rope): in time, height and width. Those of text
are equal, so a text alone has the plain rope, however `mrope_section` divides it. Gemma 3 and
Mistral 3, whose ropes are plain, are with their makers' other families.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.models.deepseek_families import DEEPSEEKS
from engine.models.dense_families import DENSE
from engine.models.family import TEXT, TIED, Family, Raw, text_part
from engine.models.hybrid_families import HYBRIDS
from engine.models.moe_families import MIXTURES

ROPES = ("rope_parameters", "rope_scaling")


def _plain_ropes(raw: Raw) -> Raw:
    """Name m-rope as what it is for a text."""
    named = {key: raw[key] for key in ROPES if isinstance(raw.get(key), Mapping)}
    return {**raw, **{key: _plain(rope) for key, rope in named.items()}}


def _plain(rope: Raw) -> Raw:
    kind = rope.get("rope_type", rope.get("type"))
    return {**rope, "rope_type": "default"} if kind == "mrope" else rope


def _tied_by_either(raw: Raw) -> Raw:
    """See text_part; but the head is tied as well if the inner config says so."""
    return {**text_part(raw), TIED: raw[TIED] or raw[TEXT].get(TIED, False)}


def _part_or_all(raw: Raw) -> Raw:
    """Qwen2.5-VL's settings of its text were published beside its vision_config."""
    return _tied_by_either({TEXT: {}, **raw})


def _within(
    architecture: str,
    text: Family,
    unsaid: Raw,
    neutral: Mapping[str, Sequence[object]],
    part: Callable[[Raw], Raw] = text_part,
    also: str | None = None,
) -> Family:
    """A family whose text `part` is of the family `text`, but for what is `unsaid`."""

    def today(raw: Raw) -> Raw:
        return text.today(_plain_ropes(part(raw)))

    return replace(
        text,
        architecture=architecture,
        unsaid={**text.unsaid, TIED: False, **unsaid},
        today=today,
        neutral={**text.neutral, **neutral},
        also=also,
    )


def _texts(*kinds: str, **neutral: Sequence[object]) -> dict[str, Sequence[object]]:
    """The kinds of text parts that are supported, and values without effect of other keys."""
    return {"model_type": kinds, **neutral}


_QWEN3_VL_UNSAID = {
    "max_position_embeddings": 128_000,
    "num_key_value_heads": 32,
    "rope_theta": 500_000.0,
}
_QWEN3_VL_MOE_UNSAID = {
    "max_position_embeddings": 128_000,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": True,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 16,
    "rope_theta": 500_000.0,
}
_QWEN2_5_VL_UNSAID = {
    "max_position_embeddings": 32_768,
    "max_window_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
}
_GLM4V_UNSAID = {
    "head_dim": None,
    "max_position_embeddings": 32_768,
    "partial_rotary_factor": None,
    "rms_norm_eps": 1e-5,
}
_GLM4V_MOE_UNSAID = {"attention_bias": True, "max_position_embeddings": 65_536}
_NO_WINDOW = {"use_sliding_window": (None, False)}  # transformers would ignore any
_NORMALISED = {"norm_topk_prob": (True,)}  # always, in transformers
_BIASED = {"attention_bias": (True,)}  # always, in transformers
_HEADS_NOT_NORMED = {"use_qk_norm": (None, False)}

SEEING = {
    "qwen2_5_vl": _within(
        "Qwen2_5_VLForConditionalGeneration",
        DENSE["qwen2"],
        _QWEN2_5_VL_UNSAID,
        _texts("qwen2_5_vl", "qwen2_5_vl_text"),
        _part_or_all,
    ),
    "qwen3_vl": _within(
        "Qwen3VLForConditionalGeneration",
        DENSE["qwen3"],
        _QWEN3_VL_UNSAID,
        _texts("qwen3_vl", "qwen3_vl_text", **_NO_WINDOW),
    ),
    "qwen3_vl_moe": _within(
        "Qwen3VLMoeForConditionalGeneration",
        MIXTURES["qwen3_moe"],
        _QWEN3_VL_MOE_UNSAID,
        _texts("qwen3_vl_moe", "qwen3_vl_moe_text", **_NO_WINDOW, **_NORMALISED),
    ),
    "qwen3_5": _within(
        "Qwen3_5ForConditionalGeneration",
        HYBRIDS["qwen3_5_text"],
        {},
        _texts("qwen3_5", "qwen3_5_text"),
    ),
    "qwen3_5_moe": _within(
        "Qwen3_5MoeForConditionalGeneration",
        HYBRIDS["qwen3_5_moe_text"],
        {},
        _texts("qwen3_5_moe", "qwen3_5_moe_text"),
    ),
    "kimi_k25": _within(
        "KimiK25ForConditionalGeneration",
        DEEPSEEKS["kimi_k2"],
        {TIED: True},
        _texts("kimi_k25", "kimi_k2", "deepseek_v3"),
        also="Kimi_K25ForConditionalGeneration",
    ),
    "glm4v": _within(
        "Glm4vForConditionalGeneration",
        DENSE["glm4"],
        _GLM4V_UNSAID,
        _texts("glm4v", "glm4v_text", **_BIASED),
        _tied_by_either,
    ),
    "glm46v": _within(
        "Glm46VForConditionalGeneration",
        DENSE["glm4"],
        _GLM4V_UNSAID,
        _texts("glm46v", "glm4v_text", **_BIASED),
    ),
    "glm4v_moe": _within(
        "Glm4vMoeForConditionalGeneration",
        DEEPSEEKS["glm4_moe"],
        _GLM4V_MOE_UNSAID,
        _texts("glm4v_moe", "glm4v_moe_text", **_HEADS_NOT_NORMED),
        _tied_by_either,
    ),
}
