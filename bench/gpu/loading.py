"""Loads a checkpoint's weights to a device, compared with disk and bus in the same run.

A load's floor is its bytes at the slower of two rates: that of reading the same files, by as
many threads as there are cores, and that of copies from pinned memory to the device.
"""

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from bench.gpu.row import Counted
from bench.gpu.shapes import Shape
from bench.gpu.timing import timer_of
from bench.gpu.work import layer_bytes
from engine.checkpoints.checkpoint import INDEX, Checkpoint, open_checkpoint
from engine.checkpoints.dummy import DummyTensorFile
from engine.checkpoints.placement import Placement
from engine.checkpoints.staging import BUFFER_BYTES, PART_BYTES, READERS, read_all
from engine.checkpoints.storage import device_storage
from engine.models.choosing import load_model, read_config
from engine.models.config import ModelConfig
from engine.models.weights import store_of
from engine.running.accelerator import open_accelerator

WANTED_BYTES = 2 << 30  # of layers; embedding and head come on top
FILE_BYTES = 1 << 30
MOST_THREADS = 16  # for the floor: more than a load uses, to reach the disk's limit
WARM_LOADS = 3
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint in a folder, to be loaded onto a device."""

    checkpoint: Checkpoint
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def write(cls, shape: Shape, folder: Path, device: torch.device) -> "Stored":
        """Write WANTED_BYTES of the shape's layers, with made-up weights."""
        (folder / "config.json").write_text(json.dumps(shortened(shape).config))
        dummy = open_checkpoint(str(folder), dummy_seed=0)
        config = read_config(dummy, "auto")
        assert isinstance(config, ModelConfig), "shapes are of our own families"
        made, places = store_of(dummy, config, shape.dtype, device).tensors, dict[str, str]()
        for number, names in enumerate(_files(made)):
            file = f"model-{number:05}.safetensors"
            weights = {name: made[name].get_tensor(name).cpu() for name in names}
            save_file(weights, folder / file)
            places |= dict.fromkeys(names, file)
        (folder / INDEX).write_text(json.dumps({"weight_map": places}))
        os.sync()  # dirty pages cannot be dropped from the cache
        return cls(open_checkpoint(str(folder)), config, shape.dtype, device)

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.stat().st_size for file in self.checkpoint.weight_files)

    def cold(self) -> Counted:
        """One load after the files were dropped from the page cache, if that is possible."""
        self._forget()
        took = self._load_s()
        self._forget()
        return self._counted(took, self._read_s())

    def warm(self) -> Counted:
        """The median of loads from the page cache."""
        self._read_s()
        took = statistics.median(self._load_s() for _ in range(WARM_LOADS))
        return self._counted(took, self._read_s())

    def _counted(self, took: float, read_s: float) -> Counted:
        size, bus = self.num_bytes, self._bus_rate()
        rates = (f"{rate / GIGA:.3g}" for rate in (size / took, size / read_s, bus))
        ours, disk, copied = rates
        told = f"{size / GIGA:.3g} GB at {ours} GB/s; reads {disk}, copies to it {copied} GB/s"
        return Counted(took, max(read_s, size / bus), told)

    def _load_s(self) -> float:
        """Seconds to load the weights as an engine does, until the last byte is there."""
        since = time.perf_counter()
        model = load_model(self.checkpoint, self.config, 1, self._place())
        self._wait()
        took = time.perf_counter() - since
        del model
        return took

    def _place(self) -> Placement:
        accelerator, device = open_accelerator(str(self.device)), self.device
        if accelerator is None:
            return Placement(self.dtype, device)
        kernels, products = accelerator.kernels, accelerator.products
        if products is None:
            return Placement(self.dtype, device, kernels)
        storage = device_storage(None, None, device, products, kernels)
        return Placement(self.dtype, device, kernels, None, storage)

    def _read_s(self) -> float:
        """Seconds to read all files into buffers of host memory."""
        count = max(READERS, min(MOST_THREADS, len(os.sched_getaffinity(0))))
        buffer = self._buffer(count * PART_BYTES).numpy().data
        parts = [part for file in self.checkpoint.weight_files for part in _parts(file)]
        into = [buffer[index % count * PART_BYTES :] for index in range(len(parts))]
        since = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(_read_part, parts, into))
        return time.perf_counter() - since

    def _bus_rate(self) -> float:
        """Bytes per second of copies from one buffer, of the size of a load's."""
        source = self._buffer(BUFFER_BYTES)
        target = torch.empty(BUFFER_BYTES, dtype=torch.uint8, device=self.device)

        def copy() -> None:
            target.copy_(source, non_blocking=True)

        return BUFFER_BYTES / timer_of(self.device).seconds(copy)

    def _buffer(self, size: int) -> torch.Tensor:
        """A buffer that was written to once, so that its pages exist."""
        pinned = self.device.type == "cuda"
        return torch.empty(size, dtype=torch.uint8, pin_memory=pinned).fill_(1)

    def _forget(self) -> None:
        """Drop the files from the page cache; does nothing for files in tmpfs."""
        for file in self.checkpoint.weight_files:
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def shortened(shape: Shape) -> Shape:
    """The shape with only as many layers as make WANTED_BYTES."""
    layers = max(1, WANTED_BYTES // layer_bytes(shape))
    return replace(shape, num_hidden_layers=min(shape.num_hidden_layers, layers))


def _files(tensors: Mapping[str, object]) -> Iterator[Sequence[str]]:
    """The tensors' names file by file, in the order in which a model takes them."""
    names, size = list[str](), 0
    for name, tensor in tensors.items():
        assert isinstance(tensor, DummyTensorFile), "weights of a dummy"
        names.append(name)
        size += tensor.num_bytes
        if size >= FILE_BYTES:
            yield names
            names, size = [], 0
    if names:
        yield names


def _parts(file: Path) -> Iterator[tuple[Path, int, int]]:
    size = file.stat().st_size
    for first in range(0, size, PART_BYTES):
        yield file, first, min(PART_BYTES, size - first)


def _read_part(part: tuple[Path, int, int], into: memoryview) -> None:
    """Read part of a file, overwriting the buffer."""
    file, first, count = part
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read_all(descriptor, first, into[:count])
    finally:
        os.close(descriptor)
