"""What a checkpoint's config.json says of its model, in our words. Torch-free.

Families differ here by data only: biases, norms on queries and keys, attention windows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.errors import UnusableCheckpoint

TRAINED = "original_max_position_embeddings"
Size = Annotated[int, Meta(ge=1)]
Halves = Annotated[int, Meta(ge=2, multiple_of=2)]
SCALINGS = ("linear", "dynamic", "llama3", "yarn")


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding settings, named as in the Hugging Face config (`rope_parameters`)."""

    original_max_position_embeddings: Size
    rope_type: Literal["default", "linear", "dynamic", "llama3", "yarn"] = "default"
    rope_theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One dense decoder; `windows` has each layer's attention span in tokens, None for all."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_layers: Size
    num_heads: Size
    num_kv_heads: Size
    head_dim: Halves  # rotary embedding turns one against the other
    norm_eps: float
    max_positions: Size
    rope: Rope
    windows: tuple[Size | None, ...]
    dtype: str
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Read config.json of any supported family; raises UnusableCheckpoint, saying what."""
    kind, architectures = raw.get("model_type"), raw.get("architectures")
    family = _FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None or architectures not in (None, [family.architecture]):
        known = ", ".join(f"{one.architecture} ({name})" for name, one in _FAMILIES.items())
        raise UnusableCheckpoint(
            f"config.json: {architectures} (model_type {kind}) is not supported; "
            f"these are: {known}"
        )
    try:
        given = {**family.unsaid, **raw}
        return msgspec.convert({**_common(given), **family.differs(given)}, ModelConfig)
    except KeyError as error:
        raise UnusableCheckpoint(f"config.json: {error.args[0]} is missing") from error
    except (TypeError, ValueError, ArithmeticError, msgspec.ValidationError) as error:
        raise UnusableCheckpoint(f"config.json: {error}") from error


def _common(raw: Mapping[str, Any]) -> dict[str, Any]:
    if raw.get("hidden_act", "silu") != "silu":
        raise UnusableCheckpoint(
            f"config.json: hidden_act {raw['hidden_act']} is not supported"
        )
    if raw.get("quantization_config"):
        raise UnusableCheckpoint("config.json: quantized checkpoints are not supported")
    heads, layers = raw["num_attention_heads"], raw["num_hidden_layers"]
    return {
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw["intermediate_size"],
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // heads,
        "norm_eps": raw.get("rms_norm_eps", 1e-6),
        "max_positions": _max_positions(raw),
        "rope": _rope(raw),
        "windows": (None,) * layers,
        "dtype": raw.get("dtype") or raw.get("torch_dtype") or "float32",
        "tied_embeddings": raw.get("tie_word_embeddings", False),
    }


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """With the length that the model was trained for, which need not be said."""
    given, longest = _given_rope(raw), raw["max_position_embeddings"]
    kind = given.setdefault("rope_type", given.get("type", "default"))
    given[TRAINED] = raw.get(TRAINED) or given.get(TRAINED, longest)
    if kind == "yarn":
        given.setdefault("factor", longest / given[TRAINED])
    if kind in SCALINGS and "factor" not in given:
        raise KeyError(f"factor of rope type {kind}")
    return given


def _given_rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of today's configs, `rope_theta` and `rope_scaling` of older ones."""
    given = {"rope_theta": raw.get("rope_theta"), **(raw.get("rope_scaling") or {})}
    given |= raw.get("rope_parameters") or {}
    if raw.get("partial_rotary_factor", given.get("partial_rotary_factor")) not in (1, None):
        raise UnusableCheckpoint("config.json: partial_rotary_factor is not supported")
    if any(isinstance(value, Mapping) for value in given.values()):
        raise UnusableCheckpoint("config.json: another rope for each layer is not supported")
    return {key: value for key, value in given.items() if value is not None}


def _max_positions(raw: Mapping[str, Any]) -> int:
    """What the config says, or what yarn stretches the trained length to, if that is more."""
    rope, said = _rope(raw), int(raw["max_position_embeddings"])
    return (
        max(said, int(rope["factor"] * rope[TRAINED])) if rope["rope_type"] == "yarn" else said
    )


def _llama(raw: Mapping[str, Any]) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias, "mlp_bias": raw.get("mlp_bias", False)}


def _mistral(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"windows": (raw["sliding_window"],) * raw["num_hidden_layers"]}


def _qwen2(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True, "windows": _qwen_windows(raw)}


def _qwen3(raw: Mapping[str, Any]) -> dict[str, Any]:
    bias = raw.get("attention_bias", False)
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": True,
        "windows": _qwen_windows(raw),
    }


def _qwen_windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers: int = raw["num_hidden_layers"]
    window: int | None = raw["sliding_window"]
    if not raw.get("use_sliding_window", False):
        return (None,) * layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = raw["max_window_layers"]
        kinds = ["sliding_attention" if i >= first else "" for i in range(layers)]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


@dataclass(frozen=True, slots=True)
class _Family:
    """How a family differs, and what its configs mean by the keys they leave out."""

    architecture: str
    differs: Callable[[Mapping[str, Any]], dict[str, Any]]
    unsaid: Mapping[str, Any]


_QWEN_UNSAID = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_MISTRAL_UNSAID = {
    "max_position_embeddings": 131_072,
    "num_key_value_heads": 8,
    "sliding_window": 4096,
}
_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", _llama, {"max_position_embeddings": 2048}),
    "mistral": _Family("MistralForCausalLM", _mistral, _MISTRAL_UNSAID),
    "qwen2": _Family("Qwen2ForCausalLM", _qwen2, _QWEN_UNSAID),
    "qwen3": _Family("Qwen3ForCausalLM", _qwen3, {**_QWEN_UNSAID, "head_dim": 128}),
}
