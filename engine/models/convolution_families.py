"""The families in which gated short convolutions keep a state, and other layers attend, as
differences from Llama.
"""

from collections.abc import Mapping
from typing import Any

from engine.models.family import FULL, LINEAR, TIED, Family, Raw, routing

CONV = "conv"
KINDS = {CONV: LINEAR, FULL: FULL}
BLOCK, WIDTH = "feed_forward", "intermediate_size"


def _lfm2(raw: Raw) -> dict[str, Any]:
    width = _adjusted(raw) if _flag(raw, "block_auto_adjust_ff_dim") else raw[WIDTH]
    return {**_operators(raw), WIDTH: width}


def _lfm2_moe(raw: Raw) -> dict[str, Any]:
    """Experts behind the first layers. Transformers adds 1e-6 to the sum of weights that are
    normalised; what that changes is far below what half precision can tell.
    """
    choice = routing(
        raw,
        normalised=raw["norm_topk_prob"],
        scoring="sigmoid",
        scale=raw["routed_scaling_factor"],
    )
    experts = {
        "routing": choice,
        "width": raw["moe_intermediate_size"],
        "block": BLOCK,
        "parts": ("w1", "w3", "w2"),
        "correction": "expert_bias" if _flag(raw, "use_expert_bias") else None,
    }
    layers = range(raw["num_hidden_layers"])
    sparse = [at >= raw["num_dense_layers"] for at in layers]
    return {**_operators(raw), "experts": experts if any(sparse) else None, "sparse": sparse}


def _operators(raw: Raw) -> dict[str, Any]:
    """What all layers have in common, whether they attend or convolve."""
    _check(raw)
    wide = raw["hidden_size"]
    return {
        "norm_eps": raw["norm_eps"],
        "qk_norm": "head",
        "norms": {"attention": "operator_norm", "mlp": "ffn_norm", "last": "embedding_norm"},
        "attention_names": {
            "output": "out_proj",
            "query_norm": "q_layernorm",
            "key_norm": "k_layernorm",
        },
        "mlp_names": {"block": BLOCK, "inward": ("w1", "w3"), "outward": "w2"},
        "layer_types": [KINDS[kind] for kind in _kinds(raw)],
        "convolution": {
            "key_heads": wide,
            "value_heads": wide,
            "kernel": raw["conv_L_cache"],
            "bias": _flag(raw, "conv_bias"),
        },
    }


def _flag(raw: Raw, name: str) -> bool:
    said: object = raw[name]
    if not isinstance(said, bool):
        raise TypeError(f"{name} has to be true or false, and is {said!r}")
    return said


def _kinds(raw: Raw) -> list[str]:
    kinds = raw["layer_types"]
    if not isinstance(kinds, list):
        raise TypeError(f"layer_types has to be a list, and is {kinds!r}")
    if unknown := sorted({str(kind) for kind in kinds} - {*KINDS}):
        raise ValueError(f"layer_types {', '.join(unknown)} are not supported")
    return kinds


def _check(raw: Raw) -> None:
    """The convolution is as wide as hidden states, whatever else a config could say."""
    wide = raw["hidden_size"]
    for name in ("block_dim", "conv_dim", "conv_dim_out"):
        if raw.get(name) not in (None, wide):
            raise ValueError(f"{name} {raw[name]} is not hidden_size {wide}")


def _adjusted(raw: Raw) -> int:
    """The MLP's width: two thirds of what the config says, times a factor, rounded up."""
    width = int(2 * raw[WIDTH] / 3)
    if (factor := raw["block_ffn_dim_multiplier"]) is None:
        return width
    multiple: int = raw["block_multiple_of"]
    return multiple * -(-int(factor * width) // multiple)


def _lfm2_today(raw: Raw) -> Raw:
    """Today's spelling: the layers that attend, counted or named, and two keys' names."""
    layers, attending = range(raw["num_hidden_layers"]), raw.get("full_attn_idxs")
    if not isinstance(attending or [], list):
        raise TypeError(f"full_attn_idxs has to be a list, and is {attending!r}")
    attending = layers if attending is None else attending
    kinds = raw.get("layer_types") or [FULL if at in attending else CONV for at in layers]
    width = raw.get("block_ff_dim")
    width = raw[WIDTH] if width is None else width
    return {**_tied_today(raw), "layer_types": kinds, WIDTH: width}


def _tied_today(raw: Raw) -> Raw:
    tied = raw.get("tie_embedding")
    return raw if tied is None else {**raw, TIED: tied}


_UNSAID: Mapping[str, object] = {
    "conv_L_cache": 3,
    "conv_bias": False,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    TIED: True,
}
_LFM2_UNSAID = {
    **_UNSAID,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
}
_MOE_UNSAID = {
    **_UNSAID,
    "moe_intermediate_size": 1792,
    "norm_topk_prob": True,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "routed_scaling_factor": 1.0,
    "use_expert_bias": True,
}
# what transformers does not apply must not ask for anything
_NEUTRAL = {
    "block_use_swiglu": (None, True),
    "hidden_act": (None, "silu"),
    "use_pos_enc": (None, True),
}

CONVOLUTIONS = {
    "lfm2": Family("Lfm2ForCausalLM", _lfm2, _LFM2_UNSAID, _lfm2_today, _NEUTRAL),
    "lfm2_moe": Family("Lfm2MoeForCausalLM", _lfm2_moe, _MOE_UNSAID, _tied_today, _NEUTRAL),
}
