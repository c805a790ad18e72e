"""What a checkpoint's config.json says of its model, in our words. Torch-free.

Families differ here by data only: biases, norms on queries and keys, attention windows.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.errors import UnusableCheckpoint

QWEN2_WINDOW_FROM_LAYER = 28


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding settings, named as in the Hugging Face config (`rope_parameters`)."""

    rope_type: str = "default"
    rope_theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One dense decoder; `windows` has each layer's attention span in tokens, None for all."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    rope: Rope
    windows: tuple[int | None, ...]
    dtype: str
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read config.json of any supported family; raises UnusableCheckpoint, saying what."""
    names = raw.get("architectures") or ["none"]
    family = _FAMILIES.get(names[0])
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise UnusableCheckpoint(
            f"architecture {names[0]} is not supported; these are: {known}"
        )
    try:
        return msgspec.convert({**_common(raw), **family(raw)}, ModelConfig)
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise UnusableCheckpoint(f"config.json: {error!r}") from error


def _common(raw: Mapping[str, Any]) -> dict[str, Any]:
    if raw.get("hidden_act", "silu") != "silu":
        raise UnusableCheckpoint(
            f"config.json: hidden_act {raw['hidden_act']} is not supported"
        )
    if raw.get("quantization_config"):
        raise UnusableCheckpoint("config.json: quantized checkpoints are not supported")
    heads, layers = raw["num_attention_heads"], raw["num_hidden_layers"]
    return {
        "architecture": raw["architectures"][0],
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // heads,
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "max_positions": raw.get("max_position_embeddings", 2048),
        "rope": _rope(raw),
        "windows": (None,) * layers,
        "dtype": raw.get("dtype") or raw.get("torch_dtype") or "float32",
        "tied_embeddings": raw.get("tie_word_embeddings", False),
    }


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of today's configs, `rope_theta` and `rope_scaling` of older ones."""
    given = {"rope_theta": raw.get("rope_theta"), **(raw.get("rope_scaling") or {})}
    given |= raw.get("rope_parameters") or {}
    given.setdefault("rope_type", given.get("type"))
    if raw.get("partial_rotary_factor", given.get("partial_rotary_factor", 1.0)) not in (
        1,
        None,
    ):
        raise UnusableCheckpoint("config.json: partial_rotary_factor is not supported")
    return {key: value for key, value in given.items() if value is not None}


def _llama(raw: Mapping[str, Any]) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": raw.get("mlp_bias", False)}


def _mistral(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"windows": (raw.get("sliding_window"),) * raw["num_hidden_layers"]}


def _qwen2(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True, "windows": _qwen_windows(raw)}


def _qwen3(raw: Mapping[str, Any]) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "head_dim": raw.get("head_dim", 128),
        "windows": _qwen_windows(raw),
    }


def _qwen_windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers: int = raw["num_hidden_layers"]
    window: int | None = raw.get("sliding_window")
    if not raw.get("use_sliding_window", False):
        return (None,) * layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = raw.get("max_window_layers", QWEN2_WINDOW_FROM_LAYER)
        kinds = ["sliding_attention" if i >= first else "" for i in range(layers)]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


_FAMILIES = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}
