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

IGNORED = "rotary_emb.inv_freq"  # in old checkpoints; the config determines it


class Tensors(Protocol):
    """A file of tensors, or something that replaces one."""

    def get_tensor(self, name: str) -> Tensor:
        """Read a whole tensor."""


class Slice(Protocol):
    """A tensor that has not been read yet."""

    def get_shape(self) -> list[int]:
        """The shape of the whole tensor."""

    def __getitem__(self, index: tuple[slice, ...]) -> Tensor:
        """Read a part of the tensor."""


class File(Tensors, Protocol):
    """A file whose tensors can be read in parts."""

    def get_slice(self, name: str) -> Slice:
        """A tensor to be read in parts."""


@dataclass(frozen=True, slots=True)
class RenamedTensor:
    """One tensor of a file, under another name."""

    file: Tensors
    name: str

    def get_tensor(self, name: str) -> Tensor:
        """See Tensors."""
        return self.file.get_tensor(self.name)


@dataclass(frozen=True, slots=True)
class TensorStore:
    """All tensors by name, and their total size in bytes."""

    tensors: dict[str, File]
    total_bytes: int
    title: str = "loading weights"


def open_store(files: Sequence[Path], device: torch.device) -> TensorStore:
    """Open safetensors files; raises UnusableCheckpoint for any other file.

    For a CPU the files are mapped, and tensors that are used unchanged stay there. For any
    other device each tensor is read straight to it, without a copy in host memory.
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
