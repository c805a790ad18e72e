"""Google's Gemma 4: layers of two kinds, whose heads differ, and of an input of their own.

Local layers attend in a window. Global ones have wider heads, of which a share of the pairs
turns, and in the larger models keys are values. Layers near the end may have no KV of their
own; MLPs may have experts beside them; scores are not scaled, as queries and keys are normed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.models.family import FULL, SLIDING, Family, Raw, every, llama, text_part
from engine.models.gemma_families import NORMS

OVERRIDES = "per_layer_config"  # as transformers writes what `global_head_dim` says
PARTS = ("k_proj", "v_proj", "k_norm", "v_norm")


def _gemma4(raw: Raw) -> dict[str, Any]:
    kinds = _kinds(raw)
    heads = {"num_kv_heads": raw["num_key_value_heads"], "head_dim": raw["head_dim"]}
    wide, shared = _global_heads(raw, kinds, heads), _shared(raw, kinds)
    if SLIDING not in kinds:
        heads = wide
    two_kinds, one_product = wide != heads, bool(raw["attention_k_eq_v"])
    return {
        **llama(raw),
        **heads,
        **_experts(raw),
        "layer_types": kinds,
        "window": raw["sliding_window"],
        "global_heads": wide if two_kinds else None,
        "layer_settings": [
            {
                "global_heads": two_kinds and kind == FULL,
                "keys_are_values": one_product and kind == FULL and not shares,
                "shares_kv": shares,
                "wide_mlp": bool(raw["use_double_wide_mlp"]) and shares,
            }
            for kind, shares in zip(kinds, shared, strict=True)
        ],
        "norms": NORMS,
        "qk_norm": "head",
        "value_norm": True,
        "attention_scale": 1.0,
        "embedding_scale": raw["hidden_size"] ** 0.5,
        "embedding_scale_rounds": True,
        "layer_input_width": _input_width(raw),
        "layer_scalars": True,
        "logits_softcap": raw["final_logit_softcapping"],
        # published checkpoints have them
        "unused_names": [
            f"model.layers.{at}.self_attn.{part}."
            for at, shares in enumerate(shared)
            if shares
            for part in PARTS
        ],
    }


def _kinds(raw: Raw) -> list[str]:
    """Each layer's; the last attends to everything, whatever the config says."""
    said = raw["layer_types"] or every(raw, 6)
    return [*said[:-1], FULL]


def _global_heads(raw: Raw, kinds: Sequence[str], heads: Raw) -> dict[str, Any]:
    """The heads of global layers, in Google's spelling or in transformers'."""
    if raw.get(OVERRIDES) is None:
        count = raw["num_global_key_value_heads"] if raw["attention_k_eq_v"] else None
        return {
            "num_kv_heads": heads["num_kv_heads"] if count is None else count,
            "head_dim": raw["global_head_dim"],
        }
    given = {int(at): one for at, one in raw[OVERRIDES].items()}  # with zeros before: "05"
    wide = [at for at, kind in enumerate(kinds) if kind == FULL]
    found = [given[at] for at in wide if at in given]
    alike = len(found) in (0, len(wide)) and all(one == found[0] for one in found)
    known = {"head_dim", "num_key_value_heads"}
    if not alike or set(given) - {*wide} or set(*found[:1]) - known:
        raise ValueError(f"{OVERRIDES} differs not just for layers of {FULL}")
    ours: Mapping[str, Any] = found[0] if found else {}
    return {
        "num_kv_heads": ours.get("num_key_value_heads", heads["num_kv_heads"]),
        "head_dim": ours.get("head_dim", heads["head_dim"]),
    }


def _shared(raw: Raw, kinds: Sequence[str]) -> list[bool]:
    """Whether each layer has queries alone; one before it has to have KV for them."""
    own = len(kinds) - raw["num_kv_shared_layers"]
    if own < 0 or {*kinds[:own]} != {*kinds}:
        shared = f"num_kv_shared_layers {len(kinds) - own}"
        raise ValueError(f"{shared} leaves no KV for some of {len(kinds)} layers")
    return [at >= own for at in range(len(kinds))]


def _input_width(raw: Raw) -> int | None:
    """Of each layer's own input; None: there are none."""
    width: int | None = raw["hidden_size_per_layer_input"] or None
    words = raw["vocab_size_per_layer_input"]
    if width is not None and words != raw["vocab_size"]:
        said = f"vocab_size_per_layer_input {words} and vocab_size {raw['vocab_size']}"
        raise ValueError(f"{said} are not equal")
    return width


def _experts(raw: Raw) -> dict[str, Any]:
    """Experts beside the MLP of every layer, if there are any."""
    if not raw["enable_moe_block"]:
        return {}
    routing = {"num_experts": raw["num_experts"], "top_k": raw["top_k_experts"]}
    return {
        "sparse": [True] * raw["num_hidden_layers"],
        "experts": {
            "routing": {**routing, "normalised": True},
            "width": raw["moe_intermediate_size"],
            "router": "router.proj",
            "beside": True,
        },
    }


def _today(raw: Raw) -> Raw:
    return {**raw, "rope_parameters": raw.get("rope_parameters") or _ROPES}


def _text_part_today(raw: Raw) -> Raw:
    return _today(text_part(raw))


_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
    },
}
_UNSAID = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "sliding_window": 512,
    "layer_types": None,
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
}
_CAUSAL = {"use_bidirectional_attention": (None, "vision")}  # of images, which are refused

GEMMAS4 = {
    "gemma4_text": Family("Gemma4ForCausalLM", _gemma4, _UNSAID, _today, _CAUSAL, "Gemma4Text"),
    "gemma4": Family(
        "Gemma4ForConditionalGeneration",
        _gemma4,
        _UNSAID,
        _text_part_today,
        {**_CAUSAL, "model_type": ("gemma4", "gemma4_text")},
    ),
}
