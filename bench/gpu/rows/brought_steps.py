"""Overlapped decode steps whose launches bring weights to the L2 cache while they wait.

Compared with those of overlapped_steps.py they show whether memory has time for this.
"""

from collections.abc import Iterator

from bench.gpu.row import Row
from bench.gpu.rows.overlapped_steps import overlapped
from bench.gpu.shapes import Shape
from engine.kernels.gpu.few_rows import MOST_ROWS


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of one engine, for batches that have products of few rows, unquantized."""
    if shape.quantization is None:
        few = [batch for batch in shape.batches if batch <= MOST_ROWS]
        name = "decode step of overlapped launches, weights brought to L2"
        yield from overlapped(shape, name, few, brings=True)
