"""Scales of a KV cache in 8 bits, added to a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.checkpoint import WEIGHTS

KEYS, VALUES = (0.3, 5.0), (0.01, 1.0)
"""Of two layers."""
ROUNDED = [(0.5, 1 / 64), (8.0, 1.0)]
SCALES = {"k_scale": KEYS, "v_scale": VALUES}


def add_scales(folder: Path, scales: Mapping[str, Sequence[object]] = SCALES) -> Path:
    """Add a tensor of each name to each layer's attention; answers `folder`."""
    added = {
        f"model.layers.{layer}.self_attn.{name}": torch.tensor(scale)
        for name, each in scales.items()
        for layer, scale in enumerate(each)
    }
    save_file({**load_file(folder / WEIGHTS), **added}, folder / WEIGHTS, {"format": "pt"})
    return folder
