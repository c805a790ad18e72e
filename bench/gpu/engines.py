"""Our engine over dummy weights of a shape, shared by all rows of the shape.

It imports more than torch and triton, so rows import it only in `make`.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bench.adapter_files import write_adapters
from bench.engine.ours import OurEngine
from bench.gpu.shapes import Shape
from engine.running.accelerator import Accelerator
from engine.settings import EngineConfig

ROOM = 256  # tokens that a decode row may add to each sequence


@dataclass(slots=True)
class Loaded:
    """One engine for all rows of a shape, loaded by the first.

    `accelerator` replaces the device's own. `adapters` is how many LoRA adapters it has, which
    its requests name in turns.
    """

    shape: Shape
    accelerator: Accelerator | None = None
    adapters: int = 0
    _ours: OurEngine | None = field(default=None)

    def on(self, device: torch.device) -> OurEngine:
        """The engine."""
        if self._ours is None:
            with tempfile.TemporaryDirectory() as folder:
                write_config(Path(folder), self.shape)
                modules = write_adapters(
                    Path(folder), self.shape, self.adapters, self.shape.dtype
                )
                self._ours = self._load(folder, device, modules)
                self._ours.adapters = [one.partition("=")[0] for one in modules]
        return self._ours

    def _load(self, folder: str, device: torch.device, modules: Sequence[str]) -> OurEngine:
        shape = self.shape
        settings = EngineConfig(
            model=folder,
            load_format="dummy",
            device=str(device),
            cpu_kernels="torch" if shape.quantization else "auto",
            quantization=shape.quantization,
            lora_modules=tuple(modules),
            block_size=shape.block_size,
            max_num_batched_tokens=shape.prefill,
        )
        sequences, decoded = max(shape.batches), shape.context + room_of(shape)
        longest = max(decoded, shape.prefill + 1)
        together = max(sequences * decoded, longest)
        return OurEngine.load(settings, shape, sequences, longest, together, self.accelerator)


def room_of(shape: Shape) -> int:
    """Tokens of room after the context."""
    return min(ROOM, shape.max_position_embeddings - shape.context)


def write_config(folder: Path, shape: Shape) -> None:
    """Write config.json, which is all that dummy weights need."""
    (folder / "config.json").write_text(json.dumps(shape.config))
