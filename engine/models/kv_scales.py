"""Folds a checkpoint's scales of a KV cache in fp8 into the weights around the cache.

A checkpoint may say for each layer what its keys and its values are divided by before they are
stored in 8 bits, so that they fill the range of such numbers. Here a scale s is rounded up to a
power of two, and no kernel knows of it:

keys    what they come from is divided by s: the weight of their norm, or else the product;
        scores are multiplied by s, in the softmax's scale
values  likewise, and the weight of the output product is multiplied by s

In float32 and bfloat16 multiplying by a power of two is exact, so that only the rounding of
what is stored changes (docs/decisions/0103-scales-of-kv-in-fp8.md).
"""

import logging
import math
from collections.abc import Sequence

import torch
from msgspec.structs import replace

from engine.checkpoints.weight_loader import WeightLoader
from engine.errors import UnusableCheckpoint
from engine.models.config import ModelConfig
from engine.models.factors import Factor, Factors, multiply

log = logging.getLogger(__name__)
KEY_NAMES = ("k_scale", "attn.k_scale", "k_proj.k_scale", "k_proj.output_scale", "kv_scale")
VALUE_NAMES = ("v_scale", "attn.v_scale", "v_proj.v_scale", "v_proj.output_scale", "kv_scale")
EXACT = (torch.float32, torch.bfloat16)
LEAST, MOST = 2.0**-64, 2.0**64


def folds_kv_scales(config: ModelConfig, dtype: torch.dtype) -> bool:
    """Whether a model that computes in `dtype` can use the scales.

    Not over latents, which are keys and values at once; nor if queries, keys and values are one
    tensor.
    """
    return dtype in EXACT and config.latent is None and not config.fused_qkv


def fold_kv_scales(loader: WeightLoader, config: ModelConfig) -> tuple[ModelConfig, Factors]:
    """Take each layer's scales from the loader, and multiply its other tensors.

    Returns the config with each layer's `key_scale` and `value_scale`, and what the layers'
    products were multiplied by. Raises UnusableCheckpoint for a scale out of all bounds.
    """
    every = range(config.num_layers)
    taken = [_take_scales(loader, _at(index)) for index in every]
    taken = [taken[config.kv_source_of(index)] for index in every]
    factors, output = dict[str, Factor](), config.attention_names.output
    for index, (key, value) in enumerate(taken):
        at = _at(index)
        if key != 1 and config.qk_norm is None:
            factors[f"{at}k_proj"] = Factor(1 / key, 1 / key)
        if value != 1 and not config.value_norm:
            factors[f"{at}v_proj"] = Factor(1 / value, 1 / value)
        if value != 1:
            factors[f"{at}{output}"] = Factor(value, bias=1)
    multiply(loader, factors)
    plans = zip(config.layers, taken, strict=True)
    scaled = [replace(one, key_scale=key, value_scale=value) for one, (key, value) in plans]
    config = replace(config, layers=tuple(scaled))
    if config.scales_kv:
        told = "KV is scaled by the checkpoint: keys are divided by %s, values by %s"
        log.info(told, *(_range(scales) for scales in zip(*taken, strict=True)))
    return config, factors


def _at(index: int) -> str:
    return f"model.layers.{index}.self_attn."


def _range(scales: Sequence[float]) -> str:
    return f"{min(scales):g} to {max(scales):g}"


def _take_scales(loader: WeightLoader, at: str) -> tuple[float, float]:
    """A layer's scales of keys and of values, which the loader then has no more."""
    scales = _scale(loader, at, KEY_NAMES), _scale(loader, at, VALUE_NAMES)
    for name in {*KEY_NAMES, *VALUE_NAMES}:
        loader.drop(loader.stored(f"{at}{name}"))
    return scales


def _scale(loader: WeightLoader, at: str, names: Sequence[str]) -> float:
    """The scale under one of these names, rounded up to a power of two; without one, 1.

    Of several (one for each head) it is the largest.
    """
    for name in names:
        if (found := f"{at}{name}") in loader:
            stored = loader.stored(found)
            scale = loader.files[stored].get_tensor(stored).max().item()
            if not LEAST <= scale <= MOST:
                raise UnusableCheckpoint(f"tensor {found}: a scale of {scale}")
            return float(2.0 ** math.ceil(math.log2(scale)))
    return 1.0
