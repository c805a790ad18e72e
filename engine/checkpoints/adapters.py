"""Finds and reads an engine's LoRA adapters; what they add to its fingerprint."""

from collections.abc import Sequence
from pathlib import Path

from engine.checkpoints.checkpoint import DIGEST, fetch
from engine.errors import UnusableAdapter, UnusableCheckpoint
from engine.lora.adapter import FILES, LoraAdapter, read_adapter
from engine.settings import read_lora_modules


def _folders(lora_modules: Sequence[str]) -> dict[str, Path]:
    """The folder of each adapter, by its name; one on the Hugging Face hub is downloaded.

    Raises UnusableAdapter, also for a missing file.
    """
    found = dict[str, Path]()
    for module in read_lora_modules(lora_modules):
        try:
            folder = fetch(module.path, FILES)
        except UnusableCheckpoint as error:
            raise UnusableAdapter(f"adapter {module.name}: {error}") from error
        for file in FILES:
            if not (folder / file).is_file():
                raise UnusableAdapter(f"adapter {module.name}: {folder / file} is missing")
        found[module.name] = folder
    return found


def read_adapters(lora_modules: Sequence[str]) -> list[LoraAdapter]:
    """Read all of them; raises UnusableAdapter."""
    folders = _folders(lora_modules)
    return [read_adapter(name, folder) for name, folder in folders.items()]


def adapter_variant(adapters: Sequence[LoraAdapter]) -> dict[str, str]:
    """Each adapter's name and digest, for a fingerprint: see Checkpoint.made_of."""
    ordered = sorted(adapters, key=lambda one: one.name)
    return {f"adapter {one.name}": DIGEST + one.digest for one in ordered}
