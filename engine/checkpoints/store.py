"""A checkpoint's safetensors files: memory-mapped on a CPU, or read onto a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoints.device_files import DeviceFile
from engine.checkpoints.staging import DeviceUploader
from engine.errors import UnusableCheckpoint

IGNORED = "rotary_emb.inv_freq"  # old checkpoints carry it; it follows from the config


class Tensors(Protocol):
    """A file, or what stands for it."""

    def get_tensor(self, name: str) -> Tensor:
        """Read it."""


class Slice(Protocol):
    """A tensor that was not read yet."""

    def get_shape(self) -> list[int]:
        """Of all of it."""

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """Read that part."""


class File(Tensors, Protocol):
    """A file, of whose tensors parts can be read."""

    def get_slice(self, name: str) -> Slice:
        """To be read in parts."""


@dataclass(frozen=True, slots=True)
class TensorStore:
    """All tensors that there are, by name, and how many bytes they have together."""

    tensors: dict[str, File]
    total_bytes: int
    title: str = "loading weights"


def open_store(files: Sequence[Path], device: torch.device) -> TensorStore:
    """Raises UnusableCheckpoint for what is no safetensors file.

    For a CPU the files are mapped, and what is needed as it is stays there. For any other
    device each tensor is read straight to it, and no second copy is made in main memory.
    """
    tensors, staging = dict[str, File](), None
    if device.type != "cpu":
        staging = DeviceUploader.on(device)
    for file in files:
        try:
            opened = safe_open(file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise UnusableCheckpoint(f"{file}: {error}") from error
        names = [name for name in opened.keys() if IGNORED not in name]  # noqa: SIM118
        one: File = opened if staging is None else DeviceFile.open(file, staging)
        tensors |= dict.fromkeys(names, one)
    return TensorStore(tensors, sum(file.stat().st_size for file in files))
