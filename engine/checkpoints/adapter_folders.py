"""Where an engine's LoRA adapters are, and the digests of what is in them. Torch-free."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from engine.checkpoints.checkpoint import DIGEST, DIGEST_BYTES, fetch
from engine.errors import UnusableAdapter, UnusableCheckpoint
from engine.lora.files import FILES
from engine.settings import read_lora_modules

READ_BYTES = 1 << 20


def adapter_folders(lora_modules: Sequence[str]) -> dict[str, Path]:
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


def adapter_variant(folders: Mapping[str, Path]) -> dict[str, str]:
    """Each adapter's name and digest, for a fingerprint: see Checkpoint.made_of."""
    return {f"adapter {name}": DIGEST + _digest(folders[name]) for name in sorted(folders)}


def _digest(folder: Path) -> str:
    """Of both files, with their lengths."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name in FILES:
        file = folder / name
        digest.update(b"%s %d\n" % (name.encode(), file.stat().st_size))
        with file.open("rb") as content:
            while data := content.read(READ_BYTES):
                digest.update(data)
    return digest.hexdigest()
