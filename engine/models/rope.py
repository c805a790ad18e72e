"""Rotary position embeddings: one table of cosines and sines per model, looked up by position.

A head's two halves are rotated against each other, by an angle that grows with the position
and shrinks with the dimension (Su et al. 2021, "RoFormer"). The scalings stretch the angles
so that a model reads further than it was trained:

linear   all angles divided by the factor (Chen et al. 2023, position interpolation)
llama3   only the slow ones, with a smooth passage between (Llama 3.1)
yarn     the same idea by number of turns, and sharper attention (Peng et al. 2023)
dynamic  nothing within the trained length, which is all we accept of it: beyond, the keys
         that are cached already would have to change
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.models.config import ModelConfig, Rope

Rotations = Sequence[tuple[Tensor, Tensor]]  # of each rope: cos and sin [tokens, 1, head_dim]


def rope_table(config: ModelConfig, length: int, device: torch.device) -> Tensor:
    """[length, 2, head_dim] float32: cosines, and sines that have the rotation's sign."""
    frequencies, scale = _frequencies(config.rope, config.head_dim)
    positions = torch.arange(length, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)  # [length, head_dim / 2]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
    return table.to(device)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [tokens, heads, head_dim] by each token's [tokens, 1, head_dim] cos and sin."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cos, swapped, sin)


def _frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Radians per position for each pair of dimensions, and a factor on cos and sin."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.rope_theta**exponents)
    match rope.rope_type:
        case "default" | "dynamic":
            return plain, 1.0
        case "linear":
            return plain / rope.factor, 1.0
        case "llama3":
            return _llama3(plain, rope), 1.0
        case "yarn":
            return _yarn(plain, rope, head_dim), _yarn_scale(rope)


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    turns = (
        rope.original_max_position_embeddings * plain / (2 * math.pi)
    )  # turns within the trained length
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = ((turns - rope.low_freq_factor) / span).clamp(0, 1)
    return plain * keep + plain / rope.factor * (1 - keep)


def _yarn(plain: Tensor, rope: Rope, head_dim: int) -> Tensor:
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
