"""Decode steps of few sequences in which each product, norm and gate has its own launch.

The engine is that of steps.py without `few_row_products`, to show what these gain.
"""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.rows.steps import decode
from bench.gpu.shapes import Shape
from engine.kernels.gpu.few_rows import MOST_ROWS
from engine.kernels.gpu.few_rows_fp8 import MOST_FP8_ROWS
from engine.kernels.gpu.kernels import TritonKernels

if TYPE_CHECKING:
    from bench.gpu.engines import Loaded


class Apart(TritonKernels):
    """TritonKernels without products of few rows."""

    few_row_products = None


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of one engine, for shapes that use such products."""
    from bench.gpu.engines import Loaded  # more than torch and triton

    most = {None: MOST_ROWS, "fp8": MOST_FP8_ROWS}.get(shape.quantization)
    if most is None:
        return
    loaded = Loaded(shape)
    for batch in shape.batches:
        if batch <= most:
            setting = f"batch {batch}, context {shape.context}"
            yield Row("decode step of single launches", setting, partial(_make, loaded, batch))


def _make(loaded: "Loaded", batch: int, device: torch.device) -> Prepared:
    from engine.running.accelerator import CudaAccelerator, open_accelerator

    if loaded.accelerator is None and device.type == "cuda":
        own = open_accelerator(str(device))
        assert isinstance(own, CudaAccelerator), "of a CUDA device"
        own.kernels = Apart()
        loaded.accelerator = own
    return decode(loaded, batch, device)
