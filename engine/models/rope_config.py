"""Reads the rotary embedding of a config.json, in today's spelling and in older ones.

Today `rope_parameters` has everything, for all layers or for each kind of layer. Older configs
have `rope_theta`, and `rope_scaling` or nothing beside it. Torch-free.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

TRAINED = "original_max_position_embeddings"
BETA = "llama_4_scaling_beta"
EVERY = "every layer"
NEEDED = {
    **dict.fromkeys(("linear", "dynamic", "yarn", "longrope"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
Positive = Annotated[float, Meta(gt=0)]
MOST = 2**31 - 1  # of a model's sizes
Size = Annotated[int, Meta(ge=1, le=MOST)]
Halves = Annotated[int, Meta(ge=2, le=MOST, multiple_of=2)]


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding settings, named as in the Hugging Face config (`rope_parameters`).

    The first `rotary_dim` dimensions of a head are rotated, in pairs of neighbours if
    `interleaved`, or else of one in the first half and one in the second. `short_factor` and
    `long_factor` [rotary_dim / 2] are longrope's, for up to the trained length and beyond.
    Of a proportional rope's pairs only the first `turned_pairs` turn.
    """

    original_max_position_embeddings: Size
    rotary_dim: Halves
    interleaved: bool = False
    rope_type: Literal[
        "default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"
    ] = "default"
    rope_theta: Positive = 10_000.0
    factor: Positive = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    turned_pairs: int = 0

    def __post_init__(self) -> None:
        """Check that factors, if any, are one for each pair."""
        if self.rope_type == "longrope":
            for factors in (self.short_factor, self.long_factor):
                if 2 * len(factors) != self.rotary_dim:
                    pairs = f"{len(factors)} factors for {self.rotary_dim // 2} pairs"
                    raise ValueError(f"rope type longrope has {pairs} of dimensions")


class QueryScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Queries grow with their position, in steps of the trained length (Llama 4's way to keep
    attention sharp in long contexts): see `query_scales` in engine/models/rope.py.
    """

    llama_4_scaling_beta: float
    original_max_position_embeddings: Size


def query_scaling(raw: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of a QueryScaling, in either spelling of ropes; None: the config has none."""
    rope = {**(raw.get("rope_scaling") or {}), **said_of_rope(raw)}
    if not rope.get(BETA):
        return None
    return {BETA: rope[BETA], TRAINED: _whole(rope[TRAINED])}


def read_ropes(
    raw: Mapping[str, Any], head_dim: int, widths: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """The fields of the Rope of each kind of layer, or of EVERY layer.

    Heads have `head_dim` numbers, and those of some kinds of layers have `widths`.
    """
    given = said_of_rope(raw)
    kinds = {kind: rope for kind, rope in given.items() if isinstance(rope, Mapping)}
    if kinds:
        every = [(kind, rope, widths.get(kind, head_dim)) for kind, rope in kinds.items()]
        return {kind: _rope(raw, rope, width) for kind, rope, width in every}
    before = dict(raw.get("rope_scaling") or {})
    today = {**before, "rope_type": before.get("rope_type", before.get("type"))}
    if given and before and any(given.get(key) != today[key] for key in today if key != "type"):
        raise ValueError(f"rope_parameters and rope_scaling {before} do not say the same")
    return {EVERY: _rope(raw, {**before, **given}, head_dim)}


def max_positions(raw: Mapping[str, Any], ropes: Mapping[str, Mapping[str, Any]]) -> int:
    """The config's maximum, or the trained length times yarn's factor if that is more."""
    yarns = [rope for rope in ropes.values() if rope["rope_type"] == "yarn"]
    stretched = [int(rope["factor"] * rope[TRAINED]) for rope in yarns]
    return max([_longest(raw), *stretched])


def local_ropes(raw: Mapping[str, Any], local_theta: str) -> dict[str, Any]:
    """Today's spelling of ropes whose windowed layers use `raw[local_theta]`, unscaled."""
    given = said_of_rope(raw)
    full = {"rope_theta": raw["rope_theta"], **(raw.get("rope_scaling") or {})}
    sliding = {"rope_theta": raw[local_theta]}
    return {
        **raw,
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": full | (given.get("full_attention") or {}),
            "sliding_attention": sliding | (given.get("sliding_attention") or {}),
        },
    }


def said_of_rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config has in `rope_parameters`."""
    given = raw.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise ValueError("rope_parameters is no object")
    return given


def _rope(raw: Mapping[str, Any], given: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    """The fields of one Rope, with the trained length, which configs may leave out."""
    said = {"rope_theta": raw.get("rope_theta"), **given}
    rope = {key: value for key, value in said.items() if value is not None}
    kind, longest = rope.setdefault("rope_type", rope.get("type", "default")), _longest(raw)
    rope[TRAINED] = _whole(raw.get(TRAINED) or rope.get(TRAINED, longest))
    share = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor"))
    turned = head_dim if share is None else int(head_dim * share)
    rope["rotary_dim"] = turned
    if kind == "proportional":
        rope.update(rotary_dim=head_dim, turned_pairs=turned // 2)
    if kind in ("yarn", "longrope"):
        rope.setdefault("factor", longest / rope[TRAINED])
    for needed in NEEDED.get(kind, ()):
        if needed not in rope:
            raise KeyError(f"{needed} of rope type {kind}")
    return rope


def _longest(raw: Mapping[str, Any]) -> int:
    return _whole(raw["max_position_embeddings"])


def _whole(length: object) -> int:
    """Some configs write a length as 32768.0, which transformers takes as well."""
    if isinstance(length, bool) or not isinstance(length, int | float):
        raise TypeError(f"a length of {length} positions")
    if int(length) != float(length):
        raise ValueError(f"a length of {length} positions")
    return int(length)
