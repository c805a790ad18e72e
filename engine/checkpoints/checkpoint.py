"""A checkpoint folder: its location, its config, and its fingerprint.

Torch-free, so that the HTTP server can read the same folder for its text.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from engine.checkpoints.hub import folder_of
from engine.errors import UnusableCheckpoint

PROTOCOL_MAJOR = 1
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MODELOPT = "hf_quant_config.json"
"""Of older checkpoints of NVIDIA ModelOpt, whose config says nothing of it."""
FETCHED_OF_DUMMIES = ("*.json", "*.jinja", "tokenizer*")
FETCHED = (*FETCHED_OF_DUMMIES, "*.safetensors")
NOT_FETCHED = "[!0-9]*/*.safetensors", "consolidated*"
"""The same weights in other layouts. Numbered folders are not: they hold pooling layers."""
SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
EDGE_BYTES = 32 * 1024
LENGTH_BYTES = 8  # a safetensors file begins with its header's length, then the header
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
DIGEST_BYTES = 16
DIGEST = "blake2b:"
"""The prefix of a content's digest, which only shows whether two contents are equal."""
ABSENT = "absent"
Variant = Mapping[str, str]
NO_VARIANT: Variant = {}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder in the Hugging Face layout, with its config read.

    With a `dummy_seed` its weights are generated, not read (engine/checkpoints/dummy.py).
    """

    folder: Path
    config: Mapping[str, Any]
    dummy_seed: int | None = None

    @property
    def weight_files(self) -> Sequence[Path]:
        """The safetensors files, in a stable order."""
        whole, index = self.folder / WEIGHTS, self.folder / INDEX
        files = sorted(self.folder.glob("*.safetensors"))
        named = _files_named(index) if index.exists() else []
        if whole in named and all(file.exists() for file in named):
            files = named
        elif whole.exists():
            files = [whole]  # as transformers: an index beside it is of another save
        elif named:
            files = named
        for file in files:
            if not file.exists():
                raise UnusableCheckpoint(f"{file} is missing")
        if not files:
            raise UnusableCheckpoint(f"{self.folder} has no safetensors files")
        return files

    @property
    def dtype(self) -> str:
        """The config's dtype, or else that of most weights that are not packed."""
        for config in (self.config.get("text_config") or {}, self.config):
            if said := config.get("dtype") or config.get("torch_dtype"):
                return str(said)
        stored = Counter[str]()
        for file in () if self.dummy_seed is not None else self.weight_files:
            for entry in _entries(file, _header(file)):
                stored[entry.dtype] += entry.end - entry.first
        found = [DTYPES[name] for name, _ in stored.most_common() if name in DTYPES]
        return next(iter(found), "float32")

    def made_of(self, variant: Variant = NO_VARIANT) -> Variant:
        """What its fingerprint covers: short values as they are, contents by their digests.

        Of the weights it covers the headers, which have all names, types and shapes, and both
        ends of every tensor; of dummy weights, the seed. `variant` has the settings under which
        the same weights yield different KV.
        """
        files = {name: self.folder / name for name in SMALL_FILES}
        small = {
            name: _digest([file.read_bytes()]) if file.exists() else ABSENT
            for name, file in files.items()
        }
        weights = f"dummy, --seed {self.dummy_seed}"
        if self.dummy_seed is None:
            weights = _digest(part for file in self.weight_files for part in _samples(file))
        return {"protocol": str(PROTOCOL_MAJOR), **variant, **small, "weights": weights}

    def fingerprint(self, variant: Variant = NO_VARIANT) -> str:
        """Equal for equal config, tokenizer and weights, whatever the folder's name."""
        return fingerprint_of(self.made_of(variant))


def _files_named(index: Path) -> list[Path]:
    """The files that an index names, in a stable order."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict):
        raise UnusableCheckpoint(f"{index}: weight_map says of no tensor where it is")
    return [index.parent / name for name in sorted({str(name) for name in places.values()})]


def fingerprint_of(parts: Variant) -> str:
    """One digest of all of `made_of`: 32 hexadecimal digits."""
    said = (f"{name}={value}\n".encode() for name, value in parts.items())
    return _hash(said)


def _digest(contents: Iterable[bytes]) -> str:
    return DIGEST + _hash(contents)


def _hash(contents: Iterable[bytes]) -> str:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def open_checkpoint(model: str, dummy_seed: int | None = None) -> Checkpoint:
    """Open a folder, or a name on the Hugging Face hub, which is downloaded if not cached.

    With a `dummy_seed` no weights are needed.
    """
    folder = fetch(model, FETCHED if dummy_seed is None else FETCHED_OF_DUMMIES)
    config = folder / "config.json"
    if not config.exists():
        raise UnusableCheckpoint(f"{config} is missing")
    said = read_json(config)
    _refuse_other_types(said, config)
    return Checkpoint(folder, _with_packing(said, folder / MODELOPT), dummy_seed)


def _refuse_other_types(said: Mapping[str, Any], file: Path) -> None:
    """Check the types of what is read before a model's own code reads its config."""
    names, text = said.get("architectures"), said.get("text_config")
    if not (names is None or isinstance(names, list)):
        raise UnusableCheckpoint(f"{file}: architectures is no list of names")
    if not (text is None or isinstance(text, dict)):
        raise UnusableCheckpoint(f"{file}: text_config is no object")


def _with_packing(config: dict[str, Any], told: Path) -> dict[str, Any]:
    """The config; if it does not say how weights are quantized, with what ModelOpt told."""
    if config.get("quantization_config") or not told.exists():
        return config
    how = read_json(told).get("quantization")
    if not isinstance(how, dict):
        raise UnusableCheckpoint(f"{told} does not say how weights are quantized")
    return {**config, "quantization_config": {"quant_method": "modelopt", **how}}


def fetch(model: str, patterns: Sequence[str]) -> Path:
    """The folder, or else the files of these patterns of a name on the hub, downloaded."""
    try:
        folder = folder_of(model, patterns, NOT_FETCHED)
    except OSError as error:
        raise UnusableCheckpoint(
            f"{model} is neither a folder nor to be fetched: {error}"
        ) from error
    if not folder.is_dir():
        raise UnusableCheckpoint(f"{model} is no folder")
    return folder


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object; raises UnusableCheckpoint, naming the file."""
    try:
        content = json.loads(file.read_bytes())
    except (ValueError, OSError) as error:
        raise UnusableCheckpoint(f"{file}: {error}") from error
    if not isinstance(content, dict):
        raise UnusableCheckpoint(f"{file} holds no settings")
    return content


class _Entry(NamedTuple):
    """A tensor's byte range after the header, and its type in safetensors' naming."""

    first: int
    end: int
    dtype: str


def _samples(file: Path) -> Iterator[bytes]:
    """The header of a safetensors file, and the first and last EDGE_BYTES of each tensor."""
    yield (header := _header(file))
    begin = LENGTH_BYTES + len(header)
    with file.open("rb") as data:
        for first, end, _ in sorted(_entries(file, header)):
            data.seek(begin + first)
            yield data.read(min(EDGE_BYTES, end - first))
            data.seek(begin + max(first, end - EDGE_BYTES))
            yield data.read(min(EDGE_BYTES, end - first))


def _header(file: Path) -> bytes:
    with file.open("rb") as data:
        size = int.from_bytes(data.read(LENGTH_BYTES), "little")
        return data.read(min(size, file.stat().st_size))


def _entries(file: Path, header: bytes) -> list[_Entry]:
    try:
        told = json.loads(header).items()
        entries = [entry for name, entry in told if name != "__metadata__"]
        spans = [entry["data_offsets"] for entry in entries]
        return [
            _Entry(int(first), int(end), str(entry["dtype"]))
            for entry, (first, end) in zip(entries, spans, strict=True)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableCheckpoint(f"{file} has no safetensors header") from error
