"""Rotary position embeddings: one table of cosines and sines per model, looked up by position.

A head's two halves are rotated against each other, by an angle that grows with the position
and shrinks with the dimension (Su et al. 2021, "RoFormer"). The scalings change the angles so
that a model can use a longer context than it was trained for:

linear   all angles divided by the factor (Chen et al. 2023, position interpolation)
llama3   only the slow ones, with a smooth passage between (Llama 3.1)
yarn     the same idea by number of turns, and sharper attention (Peng et al. 2023)
longrope each by a factor of its own (Ding et al. 2024): one set of factors for sequences within
         the trained length, another for longer ones
dynamic  no change within the trained length; we accept no longer sequences, because beyond it
         keys that are cached already would have to change
proportional  linear, and only the first pairs turn, as slowly as if all of them did (Gemma 4)

For the same reason longrope's set is chosen once, by the longest sequence that the engine
accepts, and not by a sequence's current length
(docs/decisions/0012-longrope-by-the-longest.md).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.rotation import Rotation
from engine.models.rope_config import QueryScaling, Rope

Rotations = Sequence[Rotation]  # one for each rope of a model


def rope_table(rope: Rope, head_dim: int, length: int) -> Tensor:
    """[length, 2, head_dim] float32: cosines, and sines with the rotation's sign.

    It is for heads whose dimensions are in the order of `head_order`
    (engine/attention/rotation.py); dimensions that are not rotated have an angle of 0.
    """
    frequencies, scale = _frequencies(rope, length)
    positions = torch.arange(length, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)  # [length, rotary_dim / 2]
    passing = length, (head_dim - rope.rotary_dim) // 2
    cos = torch.cat((angles.cos() * scale, torch.ones(passing)), -1)
    sin = torch.cat((angles.sin() * scale, torch.zeros(passing)), -1)
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)


def query_scales(scaling: QueryScaling | None, length: int) -> Tensor | None:
    """[length] float32: what the query at each position is multiplied by.

    1 + beta * log(1 + p // trained length), which is 1 within the trained length (Meta 2025,
    Llama 4's "temperature tuning"). None: 1 at all these positions.
    """
    if scaling is None or length <= scaling.original_max_position_embeddings:
        return None
    steps = torch.arange(length) // scaling.original_max_position_embeddings
    return 1 + scaling.llama_4_scaling_beta * steps.float().log1p()


def head_order(rope: Rope, head_dim: int) -> Tensor | None:
    """[head_dim] the checkpoint's dimensions in the order of `Rotation.turn`; None: unchanged.

    The two dimensions of each rotated pair are put half a head apart, however the family pairs
    them. Queries and keys are ordered alike, so their products do not change.
    """
    turned, dimensions = rope.rotary_dim, torch.arange(head_dim)
    if turned == head_dim and not rope.interleaved:
        return None
    if rope.interleaved:
        first, second = dimensions[:turned:2], dimensions[1:turned:2]
    else:
        first, second = dimensions[:turned].chunk(2)
    before, after = dimensions[turned:].chunk(2) if turned < head_dim else (dimensions[:0],) * 2
    return torch.cat((first, before, second, after))


def _frequencies(rope: Rope, length: int) -> tuple[Tensor, float]:
    """Radians per position for each pair of dimensions, and a factor on cos and sin."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    plain = 1.0 / (rope.rope_theta**exponents)
    match rope.rope_type:
        case "default" | "dynamic":
            return plain, 1.0
        case "linear":
            return plain / rope.factor, 1.0
        case "proportional":
            turn = torch.arange(len(plain)) < rope.turned_pairs
            return torch.where(turn, plain / rope.factor, 0.0), 1.0
        case "llama3":
            return _llama3(plain, rope), 1.0
        case "yarn":
            return _yarn(plain, rope), _yarn_scale(rope)
        case "longrope":
            factors = rope.long_factor if reaches_far(rope, length) else rope.short_factor
            return plain / torch.tensor(factors), _longrope_scale(rope)


def reaches_far(rope: Rope, length: int) -> bool:
    """Whether an engine for sequences of this length uses longrope's long factors."""
    return rope.rope_type == "longrope" and length > rope.original_max_position_embeddings


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    turns = (
        rope.original_max_position_embeddings * plain / (2 * math.pi)
    )  # turns within the trained length
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return plain * keep + plain / rope.factor * (1 - keep)


def _longrope_scale(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.factor <= 1:
        return 1.0
    trained = math.log(rope.original_max_position_embeddings)
    return math.sqrt(1 + math.log(rope.factor) / trained)


def _yarn(plain: Tensor, rope: Rope) -> Tensor:
    head_dim = rope.rotary_dim

    def dimension(turns: float) -> float:
        """The dimension that makes this many turns within the trained length."""
        ratio = rope.original_max_position_embeddings / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.rope_theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    dimensions = torch.arange(head_dim // 2, dtype=torch.float32)
    stretch = ((dimensions - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain * (1 - stretch) + plain / rope.factor * stretch


def _yarn_scale(rope: Rope) -> float:
    def log_scale(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return log_scale(rope.mscale) / log_scale(rope.mscale_all_dim)
    return log_scale(1.0)
