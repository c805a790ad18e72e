"""Loading weights from files to the device, with a cold and with a warm page cache.

`share` is that of the floor: the bytes at the slower rate of disk and bus, measured alongside.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor

if TYPE_CHECKING:
    from bench.gpu.loading import Stored

COLD, WARM = "cold", "warm"


@dataclass(slots=True)
class _Written:
    """One checkpoint for both rows, written by the first, and removed by the last."""

    shape: Shape
    _folder: "tempfile.TemporaryDirectory[str] | None" = field(default=None)
    _stored: "Stored | None" = field(default=None)

    def on(self, device: torch.device) -> "Stored":
        """The checkpoint, to be loaded onto the device."""
        from bench.gpu.loading import Stored  # more than torch and triton

        if self._stored is None:
            self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            self._stored = Stored.write(self.shape, Path(self._folder.name), device)
        return self._stored

    def remove(self) -> None:
        """Remove the files."""
        folder, self._folder, self._stored = self._folder, None, None
        if folder is not None:
            folder.cleanup()


def rows(shape: Shape) -> Iterator[Row]:
    """Rows for a checkpoint in the model's own dtype only."""
    if shape.quantization is not None:
        return
    written = _Written(shape)
    for cached in (COLD, WARM):
        yield Row("loading", f"some layers, files {cached}", partial(_make, written, cached))


def _make(written: _Written, cached: str, device: torch.device) -> Prepared:
    stored = written.on(device)
    floor = Floor(stored.num_bytes)
    if cached == COLD:
        return Prepared(stored.cold, floor, measures=True)
    return Prepared(stored.warm, floor, measures=True, close=written.remove)
