"""Decode steps whose launches begin before the one before them has ended.

The engine is that of steps.py except for how it launches, to show what
engine/kernels/gpu/overlapping.py gains before it is switched on.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.rows.steps import decode
from bench.gpu.shapes import Shape
from engine.kernels.gpu.overlapping import overlap_launches

if TYPE_CHECKING:
    from bench.gpu.engines import Loaded


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of one engine, in a separate process, as the switch applies to a whole process."""
    from bench.gpu.engines import Loaded  # more than torch and triton

    loaded = Loaded(shape)
    for batch in shape.batches:
        setting = f"batch {batch}, context {shape.context}"
        make = partial(_make, loaded, batch)
        yield Row("decode step of overlapped launches", setting, make)


def _make(loaded: "Loaded", batch: int, device: torch.device) -> Prepared:
    overlap_launches(on=device.type == "cuda")
    return decode(loaded, batch, device)
