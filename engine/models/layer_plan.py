"""What differs between a model's layers, and how a config says it. Torch-free."""

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.models.family import FULL, LINEAR, SLIDING
from engine.models.rope_config import EVERY, Rope, Size, max_positions, read_ropes


class LayerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's.

    `window`: how many tokens it attends to, None for all; its `rope`; `sparse`: it has experts.
    It mixes tokens by attention, and has KV; or it is `recurrent`, and keeps a state; or both,
    side by side; layers of some families do neither, or have no MLP. Keys and values in KV
    memory are `key_scale` and `value_scale` times smaller than they were in training
    (engine/models/kv_scales.py). Heads are the config's `global_heads`, or as in most layers;
    values may be keys before their norm and rope; or there are queries alone, which read the
    KV of the last layer before that attends alike and has its own. `wide_mlp`: it is twice as
    wide as the config says.
    """

    window: Size | None = None
    rope: Rope | None = None
    sparse: bool = False
    recurrent: bool = False
    has_attention: bool = True
    has_mlp: bool = True
    key_scale: float = 1.0
    value_scale: float = 1.0
    global_heads: bool = False
    keys_are_values: bool = False
    shares_kv: bool = False
    wide_mlp: bool = False

    @property
    def has_kv(self) -> bool:
        """Whether it writes KV, and does not only read another layer's."""
        return self.has_attention and not self.shares_kv

    @property
    def mixes(self) -> bool:
        """Whether its tokens know of others."""
        return self.has_attention or self.recurrent


def with_layers(raw: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Replace the per-layer settings in `fields` by the layers made from them."""
    wide = fields.get("global_heads")
    widths = {FULL: wide["head_dim"]} if wide else {}
    kinds, window, rotated, sparse, interleaved = (
        fields.pop(key)
        for key in ("layer_types", "window", "rotated", "sparse", "rope_interleaved")
    )
    parts, both = (fields.pop("mixes"), fields.pop("has_mlp")), fields.pop("side_by_side")
    further, whole = fields.pop("layer_settings"), fields["head_dim"]
    ropes = read_ropes(raw, whole, widths)
    if not fields.pop("partial_rotary") and any(
        rope["rotary_dim"] != widths.get(kind, whole) for kind, rope in ropes.items()
    ):
        raise ValueError(f"partial_rotary_factor is not supported with {raw['model_type']}")
    recurs = any(fields.get(net) for net in ("delta", "mamba", "convolution"))
    known = {FULL, LINEAR if recurs else SLIDING}
    if unknown := {*kinds} - known:
        raise ValueError(f"layer_types {', '.join(sorted(unknown))} are not supported")
    if not len(kinds) == len(rotated) == raw["num_hidden_layers"]:
        said = f"{len(kinds)} layer_types, {len(rotated)} of no_rope_layers"
        raise ValueError(f"{said} for {raw['num_hidden_layers']} layers")
    if len(sparse) != raw["num_hidden_layers"]:
        said = f"{len(sparse)} mlp_layer_types"
        raise ValueError(f"{said} for {raw['num_hidden_layers']} layers")
    layers = [
        {
            "window": window if kind == SLIDING else None,
            "rope": {**(ropes.get(kind) or ropes[EVERY]), "interleaved": interleaved}
            if turned and kind != LINEAR
            else None,
            "sparse": has_experts,
            "recurrent": mixes and (both or kind == LINEAR),
            "has_attention": mixes and kind != LINEAR,
            "has_mlp": thinks,
            **settings,
        }
        for kind, turned, has_experts, mixes, thinks, settings in zip(
            kinds, rotated, sparse, *parts, further, strict=True
        )
    ]
    return {**fields, "max_positions": max_positions(raw, ropes), "layers": layers}
