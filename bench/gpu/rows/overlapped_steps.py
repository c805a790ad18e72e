"""Decode steps whose launches begin before the one before them has ended.

The engine is that of steps.py except for how it launches, to show what
engine/kernels/gpu/overlapping.py gains before it is switched on.
"""

from collections.abc import Iterable, Iterator
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
    yield from overlapped(shape, "decode step of overlapped launches", shape.batches)


def overlapped(
    shape: Shape, name: str, batches: Iterable[int], *, brings: bool = False
) -> Iterator[Row]:
    """The same for some batches; `brings` as in `overlap_launches`."""
    from bench.gpu.engines import Loaded  # more than torch and triton

    loaded = Loaded(shape)
    for batch in batches:
        setting = f"batch {batch}, context {shape.context}"
        yield Row(name, setting, partial(_make, loaded, batch, brings))


def _make(loaded: "Loaded", batch: int, brings: bool, device: torch.device) -> Prepared:
    overlap_launches(on=device.type == "cuda", brings=brings)
    return decode(loaded, batch, device)
