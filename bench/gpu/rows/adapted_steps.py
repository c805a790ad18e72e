"""Decode steps and a prompt whose sequences have LoRA adapters, several in one batch.

The engine is that of steps.py with adapters, and its floor is that of the model and of the
adapters that a step uses.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.rows.steps import decode, prefill
from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor

if TYPE_CHECKING:
    from bench.gpu.engines import Loaded

ADAPTERS = 8


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of one engine, for dense shapes with unquantized weights."""
    from bench.gpu.engines import Loaded  # more than torch and triton

    if shape.quantization is not None or shape.num_experts:
        return
    loaded = Loaded(shape, adapters=ADAPTERS)
    for batch in shape.batches:
        setting = f"batch {batch}, context {shape.context}, {min(batch, ADAPTERS)} adapters"
        yield Row("decode step with adapters", setting, partial(_decode, loaded, batch))
    setting = f"{shape.prefill} tokens, one adapter"
    yield Row("prefill with an adapter", setting, partial(_prefill, loaded))


def _decode(loaded: "Loaded", batch: int, device: torch.device) -> Prepared:
    made = decode(loaded, batch, device)
    return replace(made, floor=_floor(made.floor, loaded.shape, min(batch, ADAPTERS), batch))


def _prefill(loaded: "Loaded", device: torch.device) -> Prepared:
    tokens = loaded.shape.prefill
    made = prefill(loaded, tokens, device)
    return replace(made, floor=_floor(made.floor, loaded.shape, 1, tokens))


def _floor(base: Floor, shape: Shape, used: int, tokens: int) -> Floor:
    """With `used` adapters read once, and their operations for each token."""
    from bench.adapter_files import numbers_of

    numbers = numbers_of(shape)
    return Floor(
        base.bytes + used * numbers * shape.dtype.itemsize,
        base.operations + 2 * tokens * numbers,
        base.unit,
    )
