"""A safetensors file whose tensors are read straight to a device (staging.py).

The file is read, not mapped, so nothing of it stays in this process's memory. Its header is
JSON: for each tensor its type, its shape, and its beginning and end after the header.
"""

import json
import math
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.checkpoints.staging import DeviceUploader
from engine.errors import UnusableCheckpoint

LENGTH_BYTES = 8
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}


@dataclass(slots=True, eq=False, weakref_slot=True)
class DeviceFile:
    """See File. The file is open as long as this object exists."""

    path: Path
    entries: Mapping[str, Any]
    begin: int
    descriptor: int
    staging: DeviceUploader

    @classmethod
    def open(cls, path: Path, staging: DeviceUploader) -> "DeviceFile":
        """Open a file that safetensors has opened before, so that its header is valid."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        size = int.from_bytes(os.pread(descriptor, LENGTH_BYTES, 0), "little")
        entries = json.loads(os.pread(descriptor, size, LENGTH_BYTES))
        file = cls(path, entries, LENGTH_BYTES + size, descriptor, staging)
        weakref.finalize(file, os.close, descriptor)
        return file

    def get_tensor(self, name: str) -> Tensor:
        """The whole tensor, on the device, in the file's dtype."""
        return self.get_slice(name)[()]

    def get_slice(self, name: str) -> "DeviceSlice":
        """See File; raises UnusableCheckpoint for a type that torch does not have."""
        entry = self.entries[name]
        if (kind := entry["dtype"]) not in DTYPES:
            raise UnusableCheckpoint(f"{self.path}: {name} is of type {kind}, which is unknown")
        first = self.begin + entry["data_offsets"][0]
        return DeviceSlice(self, tuple(entry["shape"]), DTYPES[kind], first)


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """See Slice; `offset` is where the tensor begins in its file."""

    file: DeviceFile
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset: int

    def get_shape(self) -> list[int]:
        """See Slice."""
        return list(self.shape)

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """See Slice. Reads only the wanted part of the first dimension, and slices the rest."""
        if not self.shape:
            return self._rows(0, 1, ())
        first, end, _ = (index[0] if index else slice(None)).indices(self.shape[0])
        end = max(first, end)
        rows = self._rows(first, end, (end - first, *self.shape[1:]))
        return rows[(slice(None), *index[1:])].contiguous() if index[1:] else rows

    def _rows(self, first: int, end: int, shape: tuple[int, ...]) -> Tensor:
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        file = self.file
        read = file.staging.read(
            file.descriptor, self.offset + first * row, (end - first) * row
        )
        return read.view(self.dtype).view(shape)
