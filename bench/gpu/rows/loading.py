"""Weights from files to the device: files that the system has to read, and such as it has.

`share` is of the least that bytes take at the slower of disk and bus, measured beside it.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor


def rows(shape: Shape) -> Iterator[Row]:
    """Of a checkpoint in the model's own type only."""
    if shape.quantization is not None:
        return
    for cached in ("cold", "warm"):
        yield Row("loading", f"some layers, files {cached}", partial(_make, shape, cached))


def _make(shape: Shape, cached: str, device: torch.device) -> Prepared:
    from bench.gpu.loading import Stored  # more than torch and triton

    folder = tempfile.TemporaryDirectory()
    try:
        stored = Stored.write(shape, Path(folder.name), device)
    except BaseException:
        folder.cleanup()
        raise
    run = stored.cold if cached == "cold" else stored.warm
    return Prepared(run, Floor(stored.num_bytes), measures=True, close=folder.cleanup)
